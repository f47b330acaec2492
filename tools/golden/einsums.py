"""Goldens of einsum: one case per form, by torch.einsum."""
import numpy as np
import torch

from case import File, normal

# case: equation, shapes of the operands
CASES = {
    # One operand.
    "transpose": ("ij->ji", (3, 4)),
    "sum_all": ("ij->", (3, 4)),
    "sum_rows": ("ijk->ik", (2, 3, 4)),
    "implicit_sorted": ("ba", (3, 4)),
    "trace": ("ii->", (4, 4)),
    "diagonal": ("ii->i", (4, 4)),
    "batch_diagonal": ("ibij->bj", (3, 2, 3, 4)),
    "triple_diagonal": ("iii->i", (3, 3, 3)),
    "implicit_trace": ("ii", (3, 3)),
    "ellipsis_transpose": ("i...->...i", (2, 3, 4)),
    "ellipsis_summed": ("...i->i", (2, 3, 4)),
    # Two operands.
    "dot": ("i,i->", (5,), (5,)),
    "outer": ("i,j->ij", (3,), (4,)),
    "elementwise": ("ij,ij->ij", (3, 4), (3, 4)),
    "elementwise_turned": ("ij,ji->ij", (3, 4), (4, 3)),
    "matrix": ("ij,jk->ik", (3, 4), (4, 5)),
    "matrix_implicit": (" i j , j k ", (3, 4), (4, 5)),
    "matrix_turned": ("ij,jk->ki", (3, 4), (4, 5)),
    "matrix_vector": ("ij,j->i", (3, 4), (4,)),
    "vector_batch": ("j,bij->bi", (4,), (2, 3, 4)),
    "batch": ("bij,bjk->bik", (2, 3, 4), (2, 4, 5)),
    "batch_last": ("ijb,jkb->ikb", (3, 4, 2), (4, 5, 2)),
    "batch_dot": ("bi,bi->b", (3, 4), (3, 4)),
    "linear": ("...d,ed->...e", (2, 3, 4), (5, 4)),
    "linear_weight_first": ("ed,...d->...e", (5, 4), (2, 3, 4)),
    "convolution": ("oi,bit->bot", (5, 3), (2, 3, 4)),
    "lone_label": ("ij,jk->k", (3, 4), (4, 5)),
    "lone_labels_of_both": ("ij,kl->", (3, 4), (2, 5)),
    "inner_two": ("abcd,cdb->ab", (2, 3, 4, 2), (4, 2, 3)),
    "inner_two_turned": ("iab,baj->ij", (3, 2, 4), (4, 2, 5)),
    "tensordot": ("aibj,kjci->akbc", (2, 3, 2, 4), (3, 4, 2, 3)),
    "bilinear_ellipsis": ("...ij,...jk->...ik", (2, 3, 4), (2, 2, 4, 3)),
    "ellipsis_broadcast": ("...i,...i->...", (2, 1, 4), (3, 4)),
    "ellipsis_implicit": ("b...,...b", (3, 2), (2, 3)),
    "size_one_batch": ("bij,bjk->bik", (1, 3, 4), (2, 4, 5)),
    "size_one_inner": ("ij,jk->ik", (3, 1), (4, 5)),
    "all_ones": ("ij,jk->ik", (1, 1), (1, 1)),
    "diagonal_times": ("ii,ij->j", (3, 3), (3, 4)),
    # Attention.
    "scores": ("bhqd,bhkd->bhqk", (2, 2, 3, 4), (2, 2, 5, 4)),
    "scores_heads_inside": ("bqhd,bkhd->bhqk", (2, 3, 2, 4), (2, 5, 2, 4)),
    "scores_grouped": ("bqhgd,bkhd->bhgqk", (2, 3, 2, 2, 4), (2, 5, 2, 4)),
    "values": ("bhqk,bkhd->bqhd", (2, 2, 3, 5), (2, 5, 2, 4)),
    "to_heads": ("btd,dhk->bthk", (2, 3, 4), (4, 2, 3)),
    "from_heads": ("bthk,hkd->btd", (2, 3, 2, 3), (2, 3, 4)),
    # More operands.
    "chain": ("ij,jk,kl->il", (2, 3), (3, 4), (4, 5)),
    "chain_of_four": ("ab,bc,cd,de->ae", (2, 3), (3, 4), (4, 3), (3, 2)),
    "quadratic": ("bi,ij,bj->b", (3, 4), (4, 5), (3, 5)),
    "three_with_one_label": ("bi,bi,bi->bi", (2, 3), (2, 3), (2, 3)),
    "three_unrelated": ("i,j,k->kij", (2,), (3,), (4,)),
    "label_in_three": ("ia,ib,ic->abc", (4, 2), (4, 3), (4, 2)),
}


def einsums():
    file = File("einsum(equation, a, b, ...): `<case>.equation` are the codes of its characters")
    for case, (equation, *shapes) in CASES.items():
        inputs = {chr(ord("a") + i): normal(f"einsum_{case}.{i}", *shape) for i, shape in enumerate(shapes)}
        file.put(f"{case}.equation", np.frombuffer(equation.encode(), "u1").astype("i8"))
        file.add(case, lambda *x, equation=equation: torch.einsum(equation, *x), inputs)
    return file
