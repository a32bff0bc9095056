// SPDX-License-Identifier: Apache-2.0

// Package filewatch calls a function when files may have changed, and reads files safely.
//
// It watches folders, not files: the folder of each path, and the folder of each symbolic link's target. So it notices
// a file that is written in place, renamed, removed and created again, or swapped behind links as in a mounted
// ConfigMap. A whole folder can be watched too. It also polls every five seconds, for file systems that send no events.
package filewatch
