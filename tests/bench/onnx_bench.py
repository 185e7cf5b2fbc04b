#!/usr/bin/env python3
"""Times inference of an .onnx file with one input of static shape: ONNX Runtime or OpenVINO, for latency on all the
threads given.

  onnx_bench.py MODEL.onnx --engine onnxruntime|openvino [--warmup 20] [--steps 100] [--repeat 3] [--threads N]
      [--serve]
"""
import sampling  # first: it takes the time of the start

import os

OPTIONS = sampling.options(__doc__)
OPTIONS.add_argument("--engine", choices=["onnxruntime", "openvino"], required=True)
ARGS = OPTIONS.parse_args()

import numpy as np  # noqa: E402


def onnxruntime(a):
    import onnxruntime as ort
    o = ort.SessionOptions()
    o.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    o.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    o.intra_op_num_threads = a.threads
    session = ort.InferenceSession(a.model, o, providers=["CPUExecutionProvider"])
    of = session.get_inputs()[0]
    x = np.random.default_rng(1).random(of.shape, dtype=np.float32)
    return "onnxruntime " + ort.__version__, of.shape[0], lambda: session.run(None, {of.name: x})


def openvino(a):
    import openvino as ov
    # f32: the plug-in would else choose 16 bits where the CPU has them
    more = {"PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": "1", "INFERENCE_PRECISION_HINT": "f32"}
    if a.threads:
        more["INFERENCE_NUM_THREADS"] = str(a.threads)
    model = ov.Core().compile_model(a.model, "CPU", more)
    request, shape = model.create_infer_request(), list(model.inputs[0].shape)
    x = np.random.default_rng(1).random(shape, dtype=np.float32)
    request.set_input_tensor(ov.Tensor(x, shared_memory=True))
    return "openvino " + ov.__version__.split("-")[0], shape[0], lambda: (request.start_async(), request.wait())


def main(a):
    if a.mode != "infer":
        raise SystemExit("onnx_bench.py: --mode infer is what these can do")
    target, n, step = {"onnxruntime": onnxruntime, "openvino": openvino}[a.engine](a)
    sampling.run(a, n, step, {"model": os.path.basename(a.model), "target": target, "precision": "f32",
                              "threads": a.threads or os.cpu_count()})


if __name__ == "__main__":
    main(ARGS)
