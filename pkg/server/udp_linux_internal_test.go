// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package server

import "testing"

// TestRests tells when a reader waits for the poller. After a full batch it must
// not: there may be more, of which the poller would not tell again.
func TestRests(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		received int
		due      int64
		want     bool
	}{
		{1, 0, true},
		{1, 5, true},
		{busyBatch - 1, 0, true},
		{busyBatch, 0, false},
		{busyBatch, 1, true},
		{batchSize - 1, 0, false},
		{batchSize - 1, 1, true},
		{batchSize, 0, false},
		{batchSize, 1000, false},
	} {
		s := &udpSocket{server: &UDP{}}
		s.server.due.Store(tt.due)
		if got := s.rests(&batch{received: tt.received}); got != tt.want {
			t.Errorf("%d received, %d due: %t, want %t", tt.received, tt.due, got, tt.want)
		}
	}
}

// TestSheafKeepsNothing sends a sheaf and looks what it still points to.
func TestSheafKeepsNothing(t *testing.T) {
	t.Parallel()
	s := newSheaf()
	for range 2 {
		for range batchSize {
			s.add(&batchReply{source: []byte("source")}, []byte("reply"))
		}
		if s.fits(nil) {
			t.Error("there is room in a full sheaf")
		}
		s.reset()
		for i := range s.out {
			h := &s.out[i].header
			if h.Name != nil || h.Namelen != 0 || h.Control != nil || h.Controllen != 0 || s.vec[i].Base != nil {
				t.Fatalf("message %d: %+v", i, h)
			}
		}
		if s.count != 0 || s.used != 0 || !s.fits(make([]byte, 65535)) {
			t.Errorf("%d replies, %d octets", s.count, s.used)
		}
	}
}
