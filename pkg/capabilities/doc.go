// SPDX-License-Identifier: Apache-2.0

// Package capabilities reads and drops the Linux capabilities of this process.
//
// A capability belongs to a thread. [Missing] reads the calling thread. [Drop] changes
// all threads, including those that start later.
package capabilities
