"""Export a trained model as a bundle, which predicts without torch."""
