// Staging into pages of a pool: see copy_cells.cuh.
KVROOM_KERNEL scatter_pages(const __grid_constant__ PagesArgs a) { copy_cells<false>(a); }
