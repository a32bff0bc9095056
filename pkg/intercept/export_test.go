// SPDX-License-Identifier: Apache-2.0

package intercept

// DialMarked is the default Dial of a Prober.
var DialMarked = dialMarked
