"""One upload: a party trains its encoder alone and uploads the embeddings of its rows once.

encoder_training   a party trains its encoder on its own rows, without labels
objectives         reconstruction for tables, contrastive learning for images
views              what is uploaded of a row: its embedding, and those of masked copies
stored_party       the coordinator's side: embeddings are looked up, not computed
heads              the coordinator's heads on stored uploads, and their options
"""
