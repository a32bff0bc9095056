// SPDX-License-Identifier: Apache-2.0

package cache

import "golang.org/x/sys/unix"

// disableHugePages makes the kernel back m with small pages. With transparent huge pages enabled for
// all processes, a nearly empty cache would take all its memory at once. A kernel without huge pages
// returns an error, which is fine.
func disableHugePages(m []byte) { _ = unix.Madvise(m, unix.MADV_NOHUGEPAGE) }
