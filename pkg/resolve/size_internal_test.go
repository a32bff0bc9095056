// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"testing"
	"unsafe"
)

// TestFlightSize keeps a flight within what the allocator gives out without a header,
// see flightRoom.
func TestFlightSize(t *testing.T) {
	t.Parallel()
	if got := unsafe.Sizeof(inFlight{}); got > 512 {
		t.Errorf("a flight has %d octets, at most 512 are cheap", got)
	}
}
