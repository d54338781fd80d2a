//! A doubly linked list through the elements of a vector, so that anything can leave from anywhere
//! in constant time.
//!
//! A list holds places in one vector; an element is in at most one list. What is not in a list has
//! no links to it, and `unlink` is only called for elements of that list.

/// No place.
pub(super) const NIL: u32 = u32::MAX;

/// The neighbours of an element of a list.
#[derive(Clone, Copy, Debug)]
pub(super) struct Links {
    prev: u32,
    next: u32,
}

impl Links {
    pub(super) const NONE: Links = Links {
        prev: NIL,
        next: NIL,
    };

    pub(super) fn next(self) -> u32 {
        self.next
    }
}

/// An element that can be in a list.
pub(super) trait Linked {
    fn links(&mut self) -> &mut Links;
}

/// The two ends of a list.
#[derive(Clone, Copy, Debug)]
pub(super) struct List {
    head: u32,
    tail: u32,
}

impl List {
    pub(super) const EMPTY: List = List {
        head: NIL,
        tail: NIL,
    };

    pub(super) fn is_empty(self) -> bool {
        self.head == NIL
    }

    /// The first place; [`NIL`] if there is none.
    pub(super) fn head(self) -> u32 {
        self.head
    }

    pub(super) fn push_back<T: Linked>(&mut self, nodes: &mut [T], at: u32) {
        *nodes[at as usize].links() = Links {
            prev: self.tail,
            next: NIL,
        };
        match self.tail {
            NIL => self.head = at,
            tail => nodes[tail as usize].links().next = at,
        }
        self.tail = at;
    }

    pub(super) fn unlink<T: Linked>(&mut self, nodes: &mut [T], at: u32) {
        let links = std::mem::replace(nodes[at as usize].links(), Links::NONE);
        self.join(nodes, links.prev, links.next);
    }

    /// The element at place `from` was moved to place `to` of the vector.
    pub(super) fn moved<T: Linked>(&mut self, nodes: &mut [T], to: u32) {
        let links = *nodes[to as usize].links();
        match links.prev {
            NIL => self.head = to,
            prev => nodes[prev as usize].links().next = to,
        }
        match links.next {
            NIL => self.tail = to,
            next => nodes[next as usize].links().prev = to,
        }
    }

    fn join<T: Linked>(&mut self, nodes: &mut [T], prev: u32, next: u32) {
        match prev {
            NIL => self.head = next,
            prev => nodes[prev as usize].links().next = next,
        }
        match next {
            NIL => self.tail = prev,
            next => nodes[next as usize].links().prev = prev,
        }
    }
}
