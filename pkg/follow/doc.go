// SPDX-License-Identifier: Apache-2.0

// Package follow tells when files may have changed, and reads them.
//
// It watches folders, not files: those of the files, and those that links lead to. What is renamed, swapped behind links
// as in a mounted ConfigMap, removed and made anew is noticed as what is written in place is. Where the kernel tells
// nothing, looking from time to time does.
package follow
