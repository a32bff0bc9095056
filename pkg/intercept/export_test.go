// SPDX-License-Identifier: Apache-2.0

package intercept

// DialMarked is what a Prober dials with by default.
var DialMarked = dialMarked
