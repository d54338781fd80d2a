//! Which layouts, and which sets of them, a rank can have.

use super::{CubeKind, CubeLayout, Dim, DimOrder, Dtype, Share};

/// A layout, or a set of them, that no rank can have. Whoever described the pools must correct it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CubeError {
    /// The name is empty or too long.
    #[error("the pool's name has {bytes} bytes; give it 1 to {max}", max = CubeLayout::MAX_NAME)]
    Name {
        /// Its length in bytes.
        bytes: usize,
    },
    /// There are no planes, or too many.
    #[error("pool {pool:?} has {planes} planes; give it 1 to {max}", max = CubeLayout::MAX_PLANES)]
    Planes {
        /// The pool's name.
        pool: String,
        /// How many there are.
        planes: usize,
    },
    /// A number is out of its bounds.
    #[error("pool {pool:?}: {field} is {value}; it must be {bounds}")]
    Bounds {
        /// The pool's name.
        pool: String,
        /// The field of [`CubeLayout`].
        field: String,
        /// What it says.
        value: u64,
        /// What it may be, in words.
        bounds: &'static str,
    },
    /// A share is empty, or not within its total.
    #[error("pool {pool:?}: {field} says {share}, which is no part of it")]
    Share {
        /// The pool's name.
        pool: String,
        /// The field of [`CubeLayout`].
        field: String,
        /// What it says.
        share: Share,
    },
    /// An index is missing or named twice, or tokens come before their page.
    #[error(
        "pool {pool:?}: {order} is no order; name each index once, and the page before the token"
    )]
    Order {
        /// The pool's name.
        pool: String,
        /// What it says.
        order: DimOrder,
    },
    /// A row is no whole number of bytes.
    #[error(
        "pool {pool:?}: {channels} channels of {bits} bits over {granule} tokens are no whole number \
         of bytes in plane {plane}"
    )]
    Row {
        /// The pool's name.
        pool: String,
        /// Which plane.
        plane: usize,
        /// Its channels.
        channels: u32,
        /// Bits of one element.
        bits: u16,
        /// Tokens that lie together.
        granule: u32,
    },
    /// Heads vary more slowly than planes, which hold different heads.
    #[error(
        "pool {pool:?}: plane {plane} holds heads {heads}, plane 0 {first}; with heads before planes \
         in {order} all must hold the same"
    )]
    HeadsDiffer {
        /// The pool's name.
        pool: String,
        /// A plane that differs from the first.
        plane: usize,
        /// What it holds.
        heads: Share,
        /// What plane 0 holds.
        first: Share,
        /// The order.
        order: DimOrder,
    },
    /// A rule of the pool's kind is broken.
    #[error("pool {pool:?}: {rule}")]
    Rule {
        /// The pool's name.
        pool: String,
        /// The rule.
        rule: &'static str,
    },
    /// The pool has more bytes than this machine can address.
    #[error("pool {pool:?} has more bytes than this machine can address; lower one of its counts")]
    TooLarge {
        /// The pool's name.
        pool: String,
    },
    /// Two pools of one rank have the same name.
    #[error("two pools are named {pool:?}; names pair the pools of two sides")]
    Twice {
        /// The name.
        pool: String,
    },
    /// The data of a scale pool is not there.
    #[error("pool {pool:?} has the scales of {of:?}, and no pool with data has that name")]
    ScaleOfNothing {
        /// The scale pool.
        pool: String,
        /// The pool that it names.
        of: String,
    },
    /// A scale pool has another part of the model than its data.
    #[error(
        "pool {pool:?} has the scales of {of:?} but another part of the model: {field} is {scale} \
         here and {data} there"
    )]
    ScaleDiffers {
        /// The scale pool.
        pool: String,
        /// The pool with the data.
        of: String,
        /// The field of [`CubeLayout`] that differs.
        field: String,
        /// Its value at the scales.
        scale: String,
        /// Its value at the data.
        data: String,
    },
}

impl CubeLayout {
    /// Whether a pool can have this layout; afterwards nothing that is computed with it overflows.
    ///
    /// # Errors
    /// [`CubeError`] names the first field that is wrong.
    pub fn validate(&self) -> Result<(), CubeError> {
        if self.name.is_empty() || self.name.len() > Self::MAX_NAME {
            let bytes = self.name.len();
            return Err(CubeError::Name { bytes });
        }
        let pool = || self.name.clone();
        if self.planes.is_empty() || self.planes.len() > Self::MAX_PLANES {
            let planes = self.planes.len();
            let pool = pool();
            return Err(CubeError::Planes { pool, planes });
        }
        if !self.order.is_valid() {
            let order = self.order;
            let pool = pool();
            return Err(CubeError::Order { pool, order });
        }
        self.share("layers".into(), self.layers)?;
        self.at_least_1("page_tokens", self.page_tokens)?;
        self.at_least_1("granule", self.granule)?;
        self.at_least_1("pages", self.pages)?;
        if !self.page_tokens.is_multiple_of(self.granule) {
            return Err(self.bounds("page_tokens", self.page_tokens, "a multiple of the granule"));
        }
        self.planes()?;
        self.rules()?;
        // An allocation has at most isize::MAX bytes.
        match self.bytes().map(isize::try_from) {
            Some(Ok(_)) => Ok(()),
            _ => Err(CubeError::TooLarge { pool: pool() }),
        }
    }

    fn planes(&self) -> Result<(), CubeError> {
        let joined = self.order.slower(Dim::Head, Dim::Plane);
        for (i, plane) in self.planes.iter().enumerate() {
            self.share(format!("planes[{i}].heads"), plane.heads)?;
            self.at_least_1(&format!("planes[{i}].channels"), plane.channels)?;
            let (name, bits) = (plane.dtype.name.len(), plane.dtype.bits);
            if name == 0 || name > Dtype::MAX_NAME {
                let field = format!("the length of planes[{i}].dtype.name");
                let name = u32::try_from(name).unwrap_or(u32::MAX);
                return Err(self.bounds(&field, name, "1 to 32 bytes"));
            }
            if bits == 0 || bits > Dtype::MAX_BITS {
                let field = format!("planes[{i}].dtype.bits");
                return Err(self.bounds(&field, bits.into(), "1 to 128"));
            }
            let elements = u128::from(plane.channels) * u128::from(self.granule);
            if elements * u128::from(bits) % 8 != 0 {
                return Err(CubeError::Row {
                    pool: self.name.clone(),
                    plane: i,
                    channels: plane.channels,
                    bits,
                    granule: self.granule,
                });
            }
            let first = self.planes[0].heads;
            if joined && plane.heads != first {
                return Err(CubeError::HeadsDiffer {
                    pool: self.name.clone(),
                    plane: i,
                    heads: plane.heads,
                    first,
                    order: self.order,
                });
            }
        }
        Ok(())
    }

    /// What the kind alone asks for.
    fn rules(&self) -> Result<(), CubeError> {
        let one_head = self.planes.iter().all(|plane| plane.heads.total == 1);
        let rule = match &self.kind {
            CubeKind::Latent if !one_head => "a latent has one head, which every rank has whole",
            CubeKind::IndexK if !one_head => "index keys have one head, which every rank has whole",
            CubeKind::Aux if !one_head => "an aux row has one head",
            CubeKind::Aux if self.layers.total != 1 => "an aux row has one layer",
            CubeKind::Scale { of } if *of == self.name => "scales cannot be their own data",
            _ => return Ok(()),
        };
        let pool = self.name.clone();
        Err(CubeError::Rule { pool, rule })
    }

    fn share(&self, field: String, share: Share) -> Result<(), CubeError> {
        let end = u64::from(share.first) + u64::from(share.held);
        if share.held == 0 || end > u64::from(share.total) {
            let pool = self.name.clone();
            return Err(CubeError::Share { pool, field, share });
        }
        Ok(())
    }

    fn at_least_1(&self, field: &str, value: u32) -> Result<(), CubeError> {
        match value {
            0 => Err(self.bounds(field, 0, "at least 1")),
            _ => Ok(()),
        }
    }

    fn bounds(&self, field: &str, value: u32, bounds: &'static str) -> CubeError {
        CubeError::Bounds {
            pool: self.name.clone(),
            field: field.to_owned(),
            value: value.into(),
            bounds,
        }
    }
}

/// Whether one rank can have these pools: each by itself, names that differ, and beside each scale
/// pool its data, with the same layers and heads.
///
/// # Errors
/// [`CubeError`] names the first pool that is wrong.
pub fn validate_set(pools: &[CubeLayout]) -> Result<(), CubeError> {
    for (i, pool) in pools.iter().enumerate() {
        pool.validate()?;
        if pools[..i].iter().any(|other| other.name == pool.name) {
            let pool = pool.name.clone();
            return Err(CubeError::Twice { pool });
        }
    }
    for pool in pools {
        if let CubeKind::Scale { of } = &pool.kind {
            let data = pools.iter().find(|other| other.name == *of);
            match data {
                Some(data) if !matches!(data.kind, CubeKind::Scale { .. }) => scales(pool, data)?,
                _ => {
                    return Err(CubeError::ScaleOfNothing {
                        pool: pool.name.clone(),
                        of: of.clone(),
                    });
                }
            }
        }
    }
    Ok(())
}

/// Scales are there for the very layers and heads that the data is. A plane of scales may also be
/// without heads: one scale for all heads of a token.
fn scales(pool: &CubeLayout, data: &CubeLayout) -> Result<(), CubeError> {
    let differs = |field: String, scale: String, data_value: String| {
        Err(CubeError::ScaleDiffers {
            pool: pool.name.clone(),
            of: data.name.clone(),
            field,
            scale,
            data: data_value,
        })
    };
    if pool.layers != data.layers {
        let (scale, data) = (pool.layers.to_string(), data.layers.to_string());
        return differs("layers".into(), scale, data);
    }
    if pool.planes.len() != data.planes.len() {
        let (scale, data) = (pool.planes.len(), data.planes.len());
        return differs(
            "the number of planes".into(),
            scale.to_string(),
            data.to_string(),
        );
    }
    for (i, (scale, data)) in pool.planes.iter().zip(&data.planes).enumerate() {
        if scale.heads != data.heads && scale.heads.total != 1 {
            let (scale, data) = (scale.heads.to_string(), data.heads.to_string());
            return differs(format!("planes[{i}].heads"), scale, data);
        }
    }
    Ok(())
}
