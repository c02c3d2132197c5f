"""Tensor operations of one forward pass, and their backends.

    arrays.py      names for types of arrays
    batch.py       what one step computes: packed arrays, no padding
    protocol.py    the coarse operations every backend offers
    weights.py     what a backend is built from
    kv_storage.py  the keys and values behind slots
    reference.py   numpy, float32: the specification
    native.py      C++ (csrc/), bfloat16: the fast one, where it was built
    backends.py    which of the two; options.py names them without loading any
    cores.py       how many cores there are to compute on
    sampling.py    from rows of logits to token ids; random_numbers.py draws for it

Belongs here: arithmetic on arrays. Not here: requests, scheduling, file formats, which weights a
network has (models). Called by models and by the model executor.
"""
