/* cudnn.h: cuDNN's backend interface, and one contraction as a plan of it. Includes nothing of the runtime: the
 * compiler plans by the same code.
 *
 * Numbers and types are those of cuDNN 9 (cudnn_graph.h), by their public names without CUDNN_, so that none of it is
 * needed to build. A contraction is described by a line of text, which stands in a code object: an operation, three
 * tensors, what follows it, an engine and its knobs. That is a tenth of what cuDNN writes of a plan, and makes a plan
 * on any device that has the engine, whereas cuDNN's own text is refused by a driver or a number of multiprocessors
 * other than those it was made for. */
#ifndef RUNTIME_CUDA_CUDNN_H
#define RUNTIME_CUDA_CUDNN_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
	DNN_DATA_FLOAT = 0, DNN_DATA_HALF = 2, DNN_DATA_BFLOAT16 = 9, DNN_CROSS_CORRELATION = 1, DNN_HEUR_MODE_A = 3,
	DNN_HEUR_MODE_FALLBACK = 2, DNN_NUMERICAL_NOTE_NONDETERMINISTIC = 4,
};
enum { DNN_POINTWISE_ADD = 0, DNN_POINTWISE_RELU_FWD = 100 };
enum {
	DNN_TYPE_HANDLE = 0, DNN_TYPE_DATA_TYPE = 1, DNN_TYPE_BOOLEAN = 2, DNN_TYPE_INT64 = 3, DNN_TYPE_FLOAT = 4,
	DNN_TYPE_VOID_PTR = 6, DNN_TYPE_CONVOLUTION_MODE = 7, DNN_TYPE_HEUR_MODE = 8, DNN_TYPE_KNOB_TYPE = 9,
	DNN_TYPE_NUMERICAL_NOTE = 11, DNN_TYPE_POINTWISE_MODE = 14, DNN_TYPE_BACKEND_DESCRIPTOR = 15,
	DNN_TYPE_CHAR = 24,
};
enum {
	DNN_POINTWISE = 0, DNN_CONVOLUTION = 1, DNN_ENGINE = 2, DNN_ENGINECFG = 3, DNN_ENGINEHEUR = 4,
	DNN_EXECUTION_PLAN = 5, DNN_KNOB_CHOICE = 7, DNN_OPERATION_CONVOLUTION_FORWARD = 10,
	DNN_OPERATION_CONVOLUTION_BACKWARD_FILTER = 11, DNN_OPERATION_CONVOLUTION_BACKWARD_DATA = 12,
	DNN_OPERATION_POINTWISE = 13, DNN_OPERATIONGRAPH = 15, DNN_VARIANT_PACK = 16, DNN_TENSOR = 17, DNN_MATMUL = 18,
	DNN_OPERATION_MATMUL = 19, DNN_DEVICEPROP = 38,
};     /* CUDNN_BACKEND_.._DESCRIPTOR */
enum { /* CUDNN_ATTR_.. */
       DNN_POINTWISE_MODE = 0,
       DNN_POINTWISE_MATH_PREC,
       DNN_CONVOLUTION_COMP_TYPE = 100,
       DNN_CONVOLUTION_CONV_MODE,
       DNN_CONVOLUTION_DILATIONS,
       DNN_CONVOLUTION_FILTER_STRIDES,
       DNN_CONVOLUTION_POST_PADDINGS,
       DNN_CONVOLUTION_PRE_PADDINGS,
       DNN_CONVOLUTION_SPATIAL_DIMS,
       DNN_ENGINEHEUR_MODE = 200,
       DNN_ENGINEHEUR_OPERATION_GRAPH,
       DNN_ENGINEHEUR_RESULTS,
       DNN_ENGINEHEUR_DEVICEPROP = 204,
       DNN_ENGINECFG_ENGINE = 300,
       DNN_ENGINECFG_KNOB_CHOICES = 302,
       DNN_PLAN_HANDLE = 400,
       DNN_PLAN_ENGINE_CONFIG,
       DNN_PLAN_WORKSPACE_SIZE,
       DNN_PLAN_DEVICEPROP = 407,
       DNN_KNOB_CHOICE_TYPE = 600,
       DNN_KNOB_CHOICE_VALUE,
       DNN_FORWARD_ALPHA = 700,
       DNN_FORWARD_BETA,
       DNN_FORWARD_CONV_DESC,
       DNN_FORWARD_W,
       DNN_FORWARD_X,
       DNN_FORWARD_Y,
       DNN_BWD_DATA_ALPHA = 706,
       DNN_BWD_DATA_BETA,
       DNN_BWD_DATA_CONV_DESC,
       DNN_BWD_DATA_W,
       DNN_BWD_DATA_DX,
       DNN_BWD_DATA_DY,
       DNN_BWD_FILTER_ALPHA = 712,
       DNN_BWD_FILTER_BETA,
       DNN_BWD_FILTER_CONV_DESC,
       DNN_BWD_FILTER_DW,
       DNN_BWD_FILTER_X,
       DNN_BWD_FILTER_DY,
       DNN_POINTWISE_DESC = 750,
       DNN_POINTWISE_XDESC,
       DNN_POINTWISE_BDESC,
       DNN_POINTWISE_YDESC,
       DNN_GRAPH_HANDLE = 800,
       DNN_GRAPH_OPS,
       DNN_TENSOR_BYTE_ALIGNMENT = 900,
       DNN_TENSOR_DATA_TYPE,
       DNN_TENSOR_DIMENSIONS,
       DNN_TENSOR_STRIDES,
       DNN_TENSOR_UNIQUE_ID = 906,
       DNN_TENSOR_IS_VIRTUAL,
       DNN_PACK_UNIQUE_IDS = 1000,
       DNN_PACK_DATA_POINTERS,
       DNN_PACK_WORKSPACE = 1003,
       DNN_ENGINE_OPERATION_GRAPH = 1300,
       DNN_ENGINE_GLOBAL_INDEX,
       DNN_ENGINE_NUMERICAL_NOTE = 1303,
       DNN_ENGINE_DEVICEPROP = 1307,
       DNN_MATMUL_COMP_TYPE = 1500,
       DNN_MATMUL_ADESC = 1520,
       DNN_MATMUL_BDESC,
       DNN_MATMUL_CDESC,
       DNN_MATMUL_DESC,
       DNN_DEVICEPROP_JSON = 2702,
};
/* of a plan at most; of its text, in bytes; of a tensor's address */
enum { DNN_KNOBS = 48, DNN_RANK = 4, DNN_TEXT = 2048, DNN_ALIGN = 16 };

typedef enum DnnOp { DNN_CONV, DNN_CONV_DX, DNN_CONV_DW, DNN_PRODUCT, DNN_OPS } DnnOp;
extern const char *const dnn_op_name[DNN_OPS]; /* as in the IR */
typedef struct DnnTensor { int dtype, rank; int64_t dim[DNN_RANK], stride[DNN_RANK]; } DnnTensor;
/* Two operands and the result: x w y; dy w dx; x dy dw (channels before rows: N C H W, K C R S, strides tell the
 * layout); a b c. Sums are f32. What may follow a convolution before its result is
 * rounded: a tensor of the result's kind is added, a number for each channel (1 K 1 1, of the result's type), negative
 * values become 0. */
typedef struct DnnProblem {
	DnnOp op;
	DnnTensor tensor[3];
	int64_t pad[2], stride[2], dilation[2];   /* of convolutions */
	bool bias, add, relu;                     /* of conv2d: what follows; bias whenever anything does */
	int64_t engine, knob[DNN_KNOBS][2];       /* number; type and value */
	int nknob;
	int64_t workspace;                        /* bytes, of the plan that the compiler made */
} DnnProblem;

int dnn_tensors(const DnnProblem *p);         /* that it reads and writes: operands, result, bias, what is added */
enum { DNN_TENSORS = 5 };                     /* at most */
/* The line of a problem, of DNN_TEXT bytes at most; false: it does not fit. */
bool dnn_text_write(const DnnProblem *p, char *to, size_t room);
/* Reads it. NULL, or what is wrong with it. */
const char *dnn_text_read(DnnProblem *p, const char *text);

typedef struct Dnn {
	void *library;
#define DNN(result, name, symbol, arguments) result (*name) arguments;
#include "cudnn.def"
#undef DNN
	char error[1024];        /* after false or NULL: what failed, and cuDNN's own words */
} Dnn;
/* The library: that of MANTOU_LIBCUDNN, else libcudnn.so.9 of the loader's path or of /usr/local/cuda/lib64. It stays
 * in the process. */
bool dnn_open(Dnn *d);
bool dnn_ok(Dnn *d, int status, const char *what);

/* Descriptors that belong together, freed together. */
typedef struct DnnPlan {
	void *made[32 + DNN_KNOBS];
	int nmade;
	void *graph, *config, *plan;
	int64_t workspace;
} DnnPlan;
void *dnn_make(Dnn *d, DnnPlan *p, int type);    /* NULL after an error */
bool dnn_graph(Dnn *d, DnnPlan *to, const DnnProblem *p, void *handle);
/* The plan of a problem's engine and knobs, on the device of a handle, or of a profile's descriptor (the other one is
 * NULL). */
bool dnn_plan(Dnn *d, DnnPlan *to, const DnnProblem *p, void *handle, void *profile);
/* the plan of an engine's configuration */
bool dnn_finish(Dnn *d, DnnPlan *to, void *config, void *handle, void *profile);
void dnn_plan_free(Dnn *d, DnnPlan *p);
#endif
