"""What a step costs: `xvfl bench`. Torch and numpy alone, so that it runs on bare machines."""
