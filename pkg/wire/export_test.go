// SPDX-License-Identifier: Apache-2.0

package wire

// What the tests look at from inside.
var (
	Lower     = lower
	EqualFold = equalFold
)

// MaxPointers is the bound on the pointers of one name, MaxSteps that on what is
// behind those of all names.
const (
	MaxPointers = maxPointers
	MaxSteps    = maxLabelSteps
)
