"""Shapes for the test of the chain."""

# Of one product: num_rows, in_features, out_features
PRODUCTS: tuple[tuple[int, int, int], ...] = ((1, 1, 1), (3, 7, 5), (17, 390, 640), (66, 1024, 96))
# Of a layer: num_rows, width of attention, hidden, width of the MLP. Few rows: where a value lies between two
# levels, the reference may round it the other way.
LAYERS: tuple[tuple[int, int, int, int], ...] = ((1, 4, 4, 4), (7, 48, 32, 72), (4, 20, 70, 130))
