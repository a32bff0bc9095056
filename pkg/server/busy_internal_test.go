// SPDX-License-Identifier: Apache-2.0

package server

import (
	"testing"
	"time"
)

// BenchmarkBusy is what saying that it is busy costs a reader for each batch.
func BenchmarkBusy(b *testing.B) {
	u := &UDP{born: time.Now()}
	s := &udpSocket{server: u}
	now := time.Now()
	for b.Loop() {
		s.batchStart.Store(u.clock(now))
		s.batchStart.Store(0)
	}
}
