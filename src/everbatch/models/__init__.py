"""Llama-family networks, and the files that they come in.

    config.py             what a network must know about a model
    hf_config.py          ... from config.json and generation_config.json
    gguf_config.py        ... from GGUF metadata
    config_fields.py      checked values out of either
    weights.py            a directory or a GGUF file as float32 tensors: load_model
    safetensors_files.py  headers and index of safetensors; gguf_file.py: the same of GGUF
    stored_tensor.py      one stored tensor, and its way to float32
    tensor_names.py       what GGUF calls a tensor
    json_file.py          JSON that nobody vouches for; file_errors.py: what the system says
    llama.py, rope.py     the network, on top of the kernels

Belongs here: networks and weights. Not here: arithmetic (kernels), requests, vocabularies
(tokenizer), the hub. Called by the model executor and by assemble.
"""
