//! The sum over a receiver's cells, once nobody writes them any more.

use crate::memory::SourceView;
use crate::slice::TargetSlice;
use kvroom_kernels::checksum::Checksum;
use kvroom_kernels::plan::cube::Rows;
use std::sync::Arc;

/// Who wants to know the sum. Tells it once; if the job is lost, that it is not known.
pub(crate) struct SumReply {
    tell: Option<Box<dyn FnOnce(Option<u64>) + Send>>,
}

impl SumReply {
    pub(crate) fn new(tell: impl FnOnce(Option<u64>) + Send + 'static) -> Self {
        SumReply {
            tell: Some(Box::new(tell)),
        }
    }

    fn tell(mut self, sum: u64) {
        if let Some(tell) = self.tell.take() {
            tell(Some(sum));
        }
    }
}

impl Drop for SumReply {
    fn drop(&mut self) {
        if let Some(tell) = self.tell.take() {
            tell(None);
        }
    }
}

/// Destination pages of one section.
pub(crate) struct SumSection {
    pub(crate) section: u16,
    pub(crate) view: SourceView,
    pub(crate) pages: Arc<[u32]>,
    /// What is to be summed by rows: all that the senders cover together.
    pub(crate) slice: Option<TargetSlice>,
}

/// Sums all cells of some sections. A job that is lost lets go of the pages before it says so: the
/// order of its fields.
pub(crate) struct SumJob {
    pub(crate) sections: Vec<SumSection>,
    pub(crate) reply: SumReply,
    sum: Checksum,
    at: (usize, u32, usize),
    /// Rows of the section at hand that are not summed yet.
    rows: Option<Box<Rows>>,
}

impl SumJob {
    pub(crate) fn new(sections: Vec<SumSection>, reply: SumReply) -> Self {
        SumJob {
            sections,
            reply,
            sum: Checksum::new(),
            at: (0, 0, 0),
            rows: None,
        }
    }

    /// Sums about `budget` bytes; true when all is summed.
    pub(crate) fn step(&mut self, budget: u64) -> bool {
        let mut read = 0;
        while let Some(section) = self.sections.get(self.at.0) {
            if let Some(slice) = &section.slice {
                let rows = match &mut self.rows {
                    Some(rows) => rows,
                    none => match slice.rows(Arc::clone(&section.pages)) {
                        Ok(rows) => none.insert(Box::new(rows)),
                        // The sum is left wrong, which ends the room.
                        Err(_) => {
                            self.at = (self.at.0 + 1, 0, 0);
                            continue;
                        }
                    },
                };
                let number = u32::from(section.section);
                while read < budget
                    && let Some(row) = rows.next()
                {
                    let sum = &mut self.sum;
                    let seen = section.view.with_bytes(row.offset, row.bytes, |bytes| {
                        sum.add_row(number, row.name, bytes);
                    });
                    if seen.is_err() {
                        // The sum is left wrong, which ends the room.
                        return true;
                    }
                    read += row.bytes;
                }
                if read >= budget {
                    return false;
                }
                self.rows = None;
                self.at = (self.at.0 + 1, 0, 0);
                continue;
            }
            let layout = Arc::clone(section.view.memory().layout());
            let Some(page) = section.pages.get(self.at.2) else {
                self.at.2 = 0;
                self.at.1 += 1;
                if self.at.1 >= layout.layers {
                    self.at = (self.at.0 + 1, 0, 0);
                }
                continue;
            };
            if self.at.1 >= layout.layers {
                self.at = (self.at.0 + 1, 0, 0);
                continue;
            }
            if read >= budget {
                return false;
            }
            let (layer, place) = (self.at.1, self.at.2 as u32);
            if let Some(offset) = layout.cell_offset(layer, *page) {
                let sum = &mut self.sum;
                let number = u32::from(section.section);
                let seen = section.view.with_bytes(offset, layout.page_bytes, |bytes| {
                    sum.add_cell(number, layer, place, bytes);
                });
                if seen.is_err() {
                    // The sum is left wrong, which ends the room. A device that does not answer is not asked
                    // for another cell.
                    return true;
                }
            }
            read += layout.page_bytes;
            self.at.2 += 1;
        }
        true
    }

    pub(crate) fn end(self) {
        let SumJob {
            sections,
            reply,
            sum,
            ..
        } = self;
        // Whoever hears of the sum may give the pages back: nothing here reads them any more.
        drop(sections);
        reply.tell(sum.value());
    }
}
