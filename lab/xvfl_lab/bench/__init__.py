"""What a step costs: `xvfl-lab bench`. Torch and numpy alone, so that it runs on bare machines."""
