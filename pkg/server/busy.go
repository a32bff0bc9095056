// SPDX-License-Identifier: Apache-2.0

package server

import (
	"sync/atomic"
	"time"
)

// busySince says since when a reader is inside a batch. A single store at either
// end of the batch is all that it costs the reader.
type busySince struct{ at atomic.Int64 } // by UDP.clock; 0: it waits for packets

func (b *busySince) begin(at int64) { b.at.Store(at) }

func (b *busySince) end() { b.at.Store(0) }

// Busy is the longest time that any reader has been inside one batch by now, zero
// if all of them wait for packets. A batch takes some microseconds, or as long as
// what the worker calls holds it up: a reader that is held up answers nobody.
func (u *UDP) Busy(now time.Time) time.Duration {
	var longest int64
	for _, s := range u.sockets.all() {
		if since := s.busy.at.Load(); since > 0 {
			longest = max(longest, u.clock(now)-since)
		}
	}
	return time.Duration(longest)
}

// clock returns now as nanoseconds since the server was made, from 1 on.
func (u *UDP) clock(now time.Time) int64 { return int64(now.Sub(u.born)) + 1 }
