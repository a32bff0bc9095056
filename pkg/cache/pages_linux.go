// SPDX-License-Identifier: Apache-2.0

package cache

import "golang.org/x/sys/unix"

// smallPages has the kernel back memory page by page. Where it has huge pages for
// everybody, a cache that is hardly filled would take all its memory at once. A kernel
// that knows no huge pages refuses, and may.
func smallPages(m []byte) { _ = unix.Madvise(m, unix.MADV_NOHUGEPAGE) }
