// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"testing"
	"unsafe"
)

// TestPendingQuerySize keeps an inFlight within a size class without a header, see inFlightBuffer.
func TestPendingQuerySize(t *testing.T) {
	t.Parallel()
	if got := unsafe.Sizeof(inFlight{}); got > 512 {
		t.Errorf("an in-flight query has %d bytes, at most 512 are cheap", got)
	}
}
