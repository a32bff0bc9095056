// SPDX-License-Identifier: Apache-2.0

// Package rights knows which of the kernel's capabilities this process has, and
// gives up those that it no longer needs.
//
// A capability belongs to a thread. What is read is the calling thread's; what is
// given up is given up by all threads, those of the future included.
package rights
