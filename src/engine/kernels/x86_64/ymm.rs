//! The kernels of both 256-bit tables, AVX2 and AVX-VNNI, as one macro: they differ only in the 8-bit dot product.
//!
//! In: feature list, name of the dot product (`sum_of_quads` of the invoking file). Out: `dot` and `accumulate`.
//! Invariant: per (row, token) the operations and their order are those of the scalar table.

/// Defines `dot` and `accumulate`. The invoking file has
/// `sum_of_quads(packing, &codes, x, first, last, fold) -> __m256i`: fold + Σ over quads first..last.
macro_rules! ymm_kernels {
    ($features:literal) => {
        fn dot(run: &Run<'_>, out: &mut [f32]) {
            run.check(out.len());
            // SAFETY: reachable only through `table()`, which checked the features; `check` proved the bounds.
            unsafe { dot_here(run, out.as_mut_ptr()) }
        }

        /// # Safety
        /// `run.check` must have passed for the length of `out`.
        #[target_feature(enable = $features)]
        unsafe fn dot_here(run: &Run<'_>, out: *mut f32) {
            // SAFETY: passed on from the caller.
            unsafe {
                match run.dtype {
                    TensorType::F32 => by_width::<{ TensorType::F32 as u8 }>(run, out),
                    TensorType::F16 => by_width::<{ TensorType::F16 as u8 }>(run, out),
                    TensorType::BF16 => by_width::<{ TensorType::BF16 as u8 }>(run, out),
                    TensorType::Q4_0 => by_width::<{ TensorType::Q4_0 as u8 }>(run, out),
                    TensorType::Q4_1 => by_width::<{ TensorType::Q4_1 as u8 }>(run, out),
                    TensorType::Q5_0 => by_width::<{ TensorType::Q5_0 as u8 }>(run, out),
                    TensorType::Q5_1 => by_width::<{ TensorType::Q5_1 as u8 }>(run, out),
                    TensorType::Q8_0 => by_width::<{ TensorType::Q8_0 as u8 }>(run, out),
                    TensorType::Q2_K => by_width::<{ TensorType::Q2_K as u8 }>(run, out),
                    TensorType::Q3_K => by_width::<{ TensorType::Q3_K as u8 }>(run, out),
                    TensorType::Q4_K => by_width::<{ TensorType::Q4_K as u8 }>(run, out),
                    TensorType::Q5_K => by_width::<{ TensorType::Q5_K as u8 }>(run, out),
                    TensorType::Q6_K => by_width::<{ TensorType::Q6_K as u8 }>(run, out),
                    TensorType::IQ4_NL => by_width::<{ TensorType::IQ4_NL as u8 }>(run, out),
                    TensorType::IQ4_XS => by_width::<{ TensorType::IQ4_XS as u8 }>(run, out),
                    TensorType::MXFP4 => by_width::<{ TensorType::MXFP4 as u8 }>(run, out),
                }
            }
        }

        /// Four tokens at a time: two accumulators each and the 8 quads of a half tile fill the registers.
        ///
        /// # Safety
        /// As [`dot_here`]; `F` is `run.dtype`.
        #[target_feature(enable = $features)]
        unsafe fn by_width<const F: u8>(run: &Run<'_>, out: *mut f32) {
            for first in 0..run.count {
                let mut token = 0;
                while token < run.tokens {
                    // SAFETY: tokens token..token + NT are below `run.tokens` in every arm; first < count.
                    unsafe {
                        token += match run.tokens - token {
                            4.. => tile::<F, 4>(run, first, token, out),
                            2.. => tile::<F, 2>(run, first, token, out),
                            _ => tile::<F, 1>(run, first, token, out),
                        };
                    }
                }
            }
        }

        /// One tile for `NT` tokens; returns `NT`.
        ///
        /// # Safety
        /// As [`dot_here`]; `F` is `run.dtype`, `index < run.count`, `token + NT ≤ run.tokens`.
        #[target_feature(enable = $features)]
        unsafe fn tile<const F: u8, const NT: usize>(
            run: &Run<'_>,
            index: usize,
            token: usize,
            out: *mut f32,
        ) -> usize {
            let first = run.first + token;
            // SAFETY: inside `run.tiles`, which `check` measured; the panel holds the run's tokens from `run.first` on,
            // for every tap; the rest is passed on.
            let acc = unsafe {
                let tile = run.tiles.as_ptr().add(index * run.tile_bytes);
                match const { Packing::of_index(F) } {
                    Some(_) => quantised::<F, NT>(run, tile, first),
                    None => float::<F, NT>(run, tile, first),
                }
            };
            for (t, acc) in acc.iter().enumerate() {
                let at = (index * run.tokens + token + t) * TILE_ROWS;
                // SAFETY: index < count and token + t < run.tokens, so the 16 values lie inside `out`.
                unsafe {
                    _mm256_storeu_ps(out.add(at), acc[0]);
                    _mm256_storeu_ps(out.add(at + 8), acc[1]);
                }
            }
            NT
        }

        /// # Safety
        /// As [`tile`].
        #[inline]
        #[target_feature(enable = $features)]
        unsafe fn quantised<const F: u8, const NT: usize>(
            run: &Run<'_>,
            tile: *const u8,
            token: usize,
        ) -> [[__m256; 2]; NT] {
            let mut acc = [[_mm256_setzero_ps(); 2]; NT];
            let Some(packing) = (const { Packing::of_index(F) }) else {
                return acc;
            };
            let panel = run.panel;
            let width = panel.width;
            let parts = if packing.halves() { 2 } else { 1 };
            let fold = panel.fold(packing).as_ptr();
            let sums = if packing.halves() {
                panel.half_sums.as_ptr()
            } else {
                panel.sums.as_ptr()
            };
            let records = run.cols / GROUP / packing.groups_per_head();
            for tap in 0..run.taps {
                // SAFETY: a tile holds `taps` parts of `tap_bytes`.
                let tile = unsafe { tile.add(tap * run.tap_bytes()) };
                let token = token + tap * run.dilation;
                for record in 0..records {
                    for inner in 0..packing.groups_per_head() {
                        let index = record * packing.groups_per_head() + inner;
                        for side in 0..2 {
                            // SAFETY: every record lies inside its tile (checked); panel arrays hold `width` entries for
                            // each group, `2 · width` where halves count (checked).
                            unsafe {
                                let head = tile.add(record * packing.record_bytes());
                                let group = head.add(packing.head_bytes() + inner * packing.group_bytes());
                                let codes = codes(packing, group, side);
                                let (scale, min) = scales(packing, head, group, side);
                                for (t, acc) in acc.iter_mut().enumerate() {
                                    let acc = &mut acc[side];
                                    let at = index * width + token + t;
                                    let x = panel.codes.as_ptr().add(at * GROUP).cast::<i32>();
                                    let factor = _mm256_set1_ps(*panel.scales.as_ptr().add(at));
                                    for part in 0..parts {
                                        let folded = (index * parts + part) * width + token + t;
                                        let start = *fold.add(folded);
                                        let sum = sum_of_quads(
                                            packing,
                                            &codes,
                                            x,
                                            part * 4,
                                            part * 4 + 8 / parts,
                                            start,
                                        );
                                        let scaled = _mm256_mul_ps(scale[part], factor);
                                        *acc = _mm256_fmadd_ps(scaled, _mm256_cvtepi32_ps(sum), *acc);
                                        if packing.has_min() {
                                            let sum = _mm256_set1_ps(*sums.add(folded));
                                            *acc = _mm256_fmadd_ps(min[part], sum, *acc);
                                        }
                                    }
                                }
                            }
                        }
                    }
                }
            }
            acc
        }

        /// The 8 quads of 8 rows (`side` 0: rows 0..8, 1: rows 8..16) of a group.
        ///
        /// # Safety
        /// `group` holds `packing.group_bytes()` bytes.
        #[inline]
        #[target_feature(enable = $features)]
        unsafe fn codes(packing: Packing, group: *const u8, side: usize) -> [__m256i; 8] {
            // SAFETY: each format's code bytes cover the lines it reads.
            let line = |n: usize| unsafe { _mm256_loadu_si256(group.add(64 * n + 32 * side).cast()) };
            let mut quads = [_mm256_setzero_si256(); 8];
            if packing.codes == Codes::Eight {
                for (n, quad) in quads.iter_mut().enumerate() {
                    *quad = line(n);
                }
                return quads;
            }
            let low = _mm256_set1_epi8(15);
            for n in 0..4 {
                let both = line(n);
                quads[n] = _mm256_and_si256(both, low);
                quads[n + 4] = _mm256_and_si256(_mm256_srli_epi16::<4>(both), low);
            }
            match packing.codes {
                Codes::Table(table) => {
                    // SAFETY: the table has 16 bytes.
                    let table = unsafe { _mm_loadu_si128(table.as_ptr().cast()) };
                    let table = _mm256_broadcastsi128_si256(table);
                    for quad in &mut quads {
                        *quad = _mm256_shuffle_epi8(table, *quad);
                    }
                }
                Codes::Five => {
                    // Bit `quad` of each byte moves to bit 4 and joins the nibble.
                    let plane = line(4);
                    let bit = _mm256_set1_epi8(16);
                    let moved = [
                        _mm256_slli_epi16::<4>(plane),
                        _mm256_slli_epi16::<3>(plane),
                        _mm256_slli_epi16::<2>(plane),
                        _mm256_slli_epi16::<1>(plane),
                        plane,
                        _mm256_srli_epi16::<1>(plane),
                        _mm256_srli_epi16::<2>(plane),
                        _mm256_srli_epi16::<3>(plane),
                    ];
                    for (quad, moved) in quads.iter_mut().zip(moved) {
                        *quad = _mm256_or_si256(_mm256_and_si256(moved, bit), *quad);
                    }
                }
                Codes::Six => {
                    let bits = _mm256_set1_epi8(0x30);
                    for half in 0..2 {
                        let plane = line(4 + half);
                        let moved = [
                            _mm256_slli_epi16::<4>(plane),
                            _mm256_slli_epi16::<2>(plane),
                            plane,
                            _mm256_srli_epi16::<2>(plane),
                        ];
                        for (quad, moved) in quads[4 * half..].iter_mut().zip(moved) {
                            *quad = _mm256_or_si256(_mm256_and_si256(moved, bits), *quad);
                        }
                    }
                }
                Codes::Nibble | Codes::Eight => {}
            }
            quads
        }

        /// Scale and min of 8 rows for both halves of a group; the second pair is used only where halves differ.
        ///
        /// # Safety
        /// `head` and `group` hold `packing.head_bytes()` and `packing.group_bytes()` bytes.
        #[inline]
        #[target_feature(enable = $features)]
        unsafe fn scales(
            packing: Packing,
            head: *const u8,
            group: *const u8,
            side: usize,
        ) -> ([__m256; 2], [__m256; 2]) {
            // SAFETY: each format's head and scale bytes cover what it reads.
            unsafe {
                let at = group.add(packing.code_bytes());
                let halves = |p: *const u8| _mm256_cvtph_ps(_mm_loadu_si128(p.add(16 * side).cast()));
                let bytes = |n: usize| _mm_loadl_epi64(at.add(16 * n + 8 * side).cast());
                let unsigned = |b: __m128i| _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(b));
                let signed = |b: __m128i| _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(b));
                let negated = |v: __m256| _mm256_xor_ps(v, _mm256_set1_ps(-0.0));
                let none = _mm256_setzero_ps();
                match packing.scales {
                    Scales::D => ([halves(at); 2], [none; 2]),
                    Scales::Dm => ([halves(at); 2], [halves(at.add(32)); 2]),
                    Scales::E8m0 => {
                        let e = _mm256_cvtepu8_epi32(bytes(0));
                        let normal = _mm256_slli_epi32::<23>(_mm256_sub_epi32(e, _mm256_set1_epi32(1)));
                        let tiny = _mm256_sllv_epi32(_mm256_set1_epi32(0x0020_0000), e);
                        let is_tiny = _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e);
                        let power = _mm256_blendv_epi8(normal, tiny, is_tiny);
                        ([_mm256_castsi256_ps(power); 2], [none; 2])
                    }
                    Scales::Bytes => (
                        [_mm256_mul_ps(halves(head), unsigned(bytes(0))); 2],
                        [_mm256_mul_ps(negated(halves(head.add(32))), unsigned(bytes(1))); 2],
                    ),
                    Scales::Signed => (
                        [_mm256_mul_ps(halves(head), signed(bytes(0))); 2],
                        [none; 2],
                    ),
                    Scales::SignedHalves => {
                        let d = halves(head);
                        (
                            [
                                _mm256_mul_ps(d, signed(bytes(0))),
                                _mm256_mul_ps(d, signed(bytes(1))),
                            ],
                            [none; 2],
                        )
                    }
                    Scales::NibbleHalves => {
                        let d = halves(head);
                        let dmin = negated(halves(head.add(32)));
                        let low = |b| unsigned(_mm_and_si128(b, _mm_set1_epi8(15)));
                        let high = |b| unsigned(_mm_and_si128(_mm_srli_epi16::<4>(b), _mm_set1_epi8(15)));
                        (
                            [
                                _mm256_mul_ps(d, low(bytes(0))),
                                _mm256_mul_ps(d, low(bytes(1))),
                            ],
                            [
                                _mm256_mul_ps(dmin, high(bytes(0))),
                                _mm256_mul_ps(dmin, high(bytes(1))),
                            ],
                        )
                    }
                }
            }
        }

        /// # Safety
        /// As [`tile`].
        #[inline]
        #[target_feature(enable = $features)]
        unsafe fn float<const F: u8, const NT: usize>(
            run: &Run<'_>,
            tile: *const u8,
            token: usize,
        ) -> [[__m256; 2]; NT] {
            let mut acc = [[_mm256_setzero_ps(); 2]; NT];
            let width = run.panel.width;
            let values = run.panel.values.as_ptr();
            let pairs = F == TensorType::BF16 as u8;
            let half = F == TensorType::F16 as u8;
            let steps = if pairs {
                run.cols.div_ceil(2)
            } else {
                run.cols
            };
            let step_bytes = if half { 32 } else { 64 };
            for tap in 0..run.taps {
                // SAFETY: a tile holds `taps` parts of `tap_bytes`.
                let tile = unsafe { tile.add(tap * run.tap_bytes()) };
                let token = token + tap * run.dilation;
                for step in 0..steps {
                    for side in 0..2 {
                        // SAFETY: step < steps, and a tile holds `steps · step_bytes` bytes (checked); `values` holds
                        // `cols · width` values (checked).
                        unsafe {
                            let p = tile.add(step * step_bytes + side * step_bytes / 2);
                            let x = |column: usize, t: usize| {
                                _mm256_set1_ps(*values.add(column * width + token + t))
                            };
                            if pairs {
                                let both = _mm256_loadu_si256(p.cast());
                                let even = _mm256_castsi256_ps(_mm256_slli_epi32::<16>(both));
                                let odd = _mm256_castsi256_ps(_mm256_and_si256(
                                    both,
                                    _mm256_set1_epi32(0xffff_0000_u32 as i32),
                                ));
                                for (t, acc) in acc.iter_mut().enumerate() {
                                    acc[side] = _mm256_fmadd_ps(even, x(2 * step, t), acc[side]);
                                    if 2 * step + 1 < run.cols {
                                        acc[side] = _mm256_fmadd_ps(odd, x(2 * step + 1, t), acc[side]);
                                    }
                                }
                            } else {
                                let weights = if half {
                                    _mm256_cvtph_ps(_mm_loadu_si128(p.cast()))
                                } else {
                                    _mm256_loadu_ps(p.cast())
                                };
                                for (t, acc) in acc.iter_mut().enumerate() {
                                    acc[side] = _mm256_fmadd_ps(weights, x(step, t), acc[side]);
                                }
                            }
                        }
                    }
                }
            }
            acc
        }

        fn accumulate(job: &Accumulate<'_>, acc: &mut [f32]) {
            assert!(job.in_bounds(acc.len()), "attention outside its slices");
            for vector in 0..job.vectors {
                let mut query = 0;
                while query < job.queries {
                    // SAFETY: reachable only through `table()`, which checked the features; `in_bounds` covers
                    // (query, vector) and, with it, what `add_rows` reads.
                    unsafe {
                        query += match (job.queries - query, job.element) {
                            (4.., 2) => add_rows::<4, true>(job, vector, query, acc),
                            (2.., 2) => add_rows::<2, true>(job, vector, query, acc),
                            (_, 2) => add_rows::<1, true>(job, vector, query, acc),
                            (4.., _) => add_rows::<4, false>(job, vector, query, acc),
                            (2.., _) => add_rows::<2, false>(job, vector, query, acc),
                            (_, _) => add_rows::<1, false>(job, vector, query, acc),
                        };
                    }
                }
            }
        }

        /// One vector of `NQ` queries from `first`; returns `NQ`.
        ///
        /// # Safety
        /// `job.in_bounds` holds for `acc`; `first + NQ ≤ job.queries`, `vector < job.vectors`.
        #[target_feature(enable = $features)]
        unsafe fn add_rows<const NQ: usize, const HALF: bool>(
            job: &Accumulate<'_>,
            vector: usize,
            first: usize,
            acc: &mut [f32],
        ) -> usize {
            let mut sums = [[_mm256_setzero_ps(); 2]; NQ];
            // SAFETY: `in_bounds` covers every (query, vector), (row, vector) and (query, row) touched here.
            unsafe {
                let slot = |q: usize| (first + q) * job.acc_stride + 16 * vector;
                for (q, sum) in sums.iter_mut().enumerate() {
                    sum[0] = _mm256_loadu_ps(acc.as_ptr().add(slot(q)));
                    sum[1] = _mm256_loadu_ps(acc.as_ptr().add(slot(q) + 8));
                }
                for n in 0..job.count {
                    let p = job
                        .rows
                        .as_ptr()
                        .add(n * job.row_stride + vector * job.vector_stride);
                    let lanes = if HALF {
                        [
                            _mm256_cvtph_ps(_mm_loadu_si128(p.cast())),
                            _mm256_cvtph_ps(_mm_loadu_si128(p.add(16).cast())),
                        ]
                    } else {
                        [_mm256_loadu_ps(p.cast()), _mm256_loadu_ps(p.add(32).cast())]
                    };
                    for (q, sum) in sums.iter_mut().enumerate() {
                        let at = (first + q) * job.factor_stride + n;
                        let factor = _mm256_set1_ps(*job.factors.as_ptr().add(at));
                        sum[0] = _mm256_fmadd_ps(lanes[0], factor, sum[0]);
                        sum[1] = _mm256_fmadd_ps(lanes[1], factor, sum[1]);
                    }
                }
                for (q, sum) in sums.iter().enumerate() {
                    _mm256_storeu_ps(acc.as_mut_ptr().add(slot(q)), sum[0]);
                    _mm256_storeu_ps(acc.as_mut_ptr().add(slot(q) + 8), sum[1]);
                }
            }
            NQ
        }
    };
}
pub(super) use ymm_kernels;
