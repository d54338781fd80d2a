// Pages of a pool into contiguous staging (or the destination's cell order): see copy_cells.cuh.
KVROOM_KERNEL gather_pages(const __grid_constant__ PagesArgs a) { copy_cells<true>(a); }
