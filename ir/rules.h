/* rules.h: the functions that ops.def names, for the files that define them and for table.c, which fills op_info.
 * Private to ir/. Elementwise and reduction rows have no function of their own but a reduction's
 * gradient: shape_ew, shape_red, flops_made, flops_read (shape.c) serve them all, and autodiff, the reference and the
 * emitters read the rows. */
#ifndef IR_RULES_H
#define IR_RULES_H
#include "ir.h"

ShapeRule shape_ew, shape_red;
ShapeRule shape_all_moments, shape_all_reduce;
ShapeRule shape_nms, shape_order, shape_roi_align, shape_roi_align_dx;
GradRule grad_all_moments, grad_all_reduce, grad_ew, grad_roi_align;
GradRule grad_sum, grad_mean, grad_extremum, grad_moments, grad_logsumexp;
RefRule ref_all_moments;
RefRule ref_nms, ref_order, ref_roi_align, ref_roi_align_dx;
ShapeRule shape_attention, shape_attention_dx, shape_avg_pool2d_dx, shape_cast, shape_check, shape_concat, shape_conv2d,
        shape_conv2d_dw, shape_conv2d_dx, shape_crop, shape_cumsum, shape_expand, shape_gather, shape_gather_dx,
        shape_given, shape_gru, shape_gru_cells, shape_gru_cells_dx, shape_gru_dx, shape_interleave, shape_iota,
        shape_load, shape_loop,
        shape_lstm, shape_lstm_cells, shape_lstm_cells_dx, shape_lstm_dx, shape_matmul, shape_pad, shape_pool2d,
        shape_pool2d_dx2, shape_random, shape_reshape, shape_same, shape_same_axis, shape_slice, shape_store,
        shape_take, shape_take_add, shape_take_dx, shape_transpose;
GradRule grad_attention, grad_avg_pool2d, grad_cast, grad_concat, grad_conv2d, grad_conv2d_dw, grad_conv2d_dx,
        grad_crop, grad_cumsum, grad_expand, grad_gather, grad_gru, grad_interleave, grad_lstm, grad_matmul,
        grad_max_pool2d, grad_none, grad_pad, grad_reshape, grad_reverse, grad_slice, grad_take, grad_transpose;
RefRule ref_attention, ref_attention_dx, ref_avg_pool2d, ref_avg_pool2d_dx, ref_cast, ref_check, ref_concat,
        ref_conv2d, ref_conv2d_dw, ref_conv2d_dx, ref_copy, ref_crop, ref_cumsum, ref_expand, ref_full, ref_gather,
        ref_gather_dx, ref_gru, ref_gru_cells, ref_gru_cells_dx, ref_gru_dx, ref_interleave, ref_iota, ref_load,
        ref_lstm, ref_lstm_cells, ref_lstm_cells_dx, ref_lstm_dx, ref_matmul, ref_max_pool2d, ref_max_pool2d_dx,
        ref_pad, ref_random, ref_reverse, ref_slice, ref_store, ref_take, ref_take_add, ref_take_dx, ref_transpose;
DecomposeRule decompose_attention, decompose_attention_dx, decompose_gru, decompose_gru_cells, decompose_gru_cells_dx,
        decompose_gru_dx, decompose_lstm, decompose_lstm_cells, decompose_lstm_cells_dx, decompose_lstm_dx;
FlopsRule flops_made, flops_read; /* an operation for each element of the results; of the first operand */
AccessRule access_broadcast, access_concat, access_crop, access_first, access_gather, access_interleave, access_pad,
        access_reshape, access_reverse, access_slice, access_take, access_transpose;
FlopsRule flops_attention, flops_cells, flops_conv2d, flops_matmul, flops_rnn, flops_roi_align;
#endif
