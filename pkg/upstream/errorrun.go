// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"slices"
	"time"
)

// When an upstream counts as one that answers with errors only. It is asked as before: the errors are its answers.
const (
	minErrors     = 10               // consecutive answers, over minErrorsTime or longer
	minErrorsTime = 2 * time.Second  // a server that has just started may need as long
	minErrorNames = 3                // different names among them, so that it is not the fault of one
	forgetErrors  = 30 * time.Second // after so long without an answer it is not known any more
)

// An errorRun describes consecutive answers with a bad response code.
type errorRun struct {
	answers int
	since   time.Time // of the first one
	latest  time.Time // of the latest one
	cause   Cause     // of the latest one
	names   [minErrorNames]uint64
	differ  int // different names seen, at most minErrorNames; names holds their hashes
}

func (r *errorRun) add(name []byte, cause Cause, now time.Time) {
	if r.answers == 0 {
		r.since = now
	}
	r.answers++
	r.latest, r.cause = now, cause
	if r.differ == minErrorNames {
		return
	}
	if h := hashName(name); !slices.Contains(r.names[:r.differ], h) {
		r.names[r.differ] = h
		r.differ++
	}
}

// shows reports whether the upstream answers with errors only.
func (r *errorRun) shows(now time.Time) bool {
	return r.answers >= minErrors && r.differ == minErrorNames && r.latest.Sub(r.since) >= minErrorsTime && now.Sub(r.latest) < forgetErrors
}

// hashName returns the FNV-1a hash of a name in any case.
func hashName(name []byte) uint64 {
	h := uint64(14695981039346656037)
	for _, b := range name {
		if 'A' <= b && b <= 'Z' {
			b |= 0x20
		}
		h = (h ^ uint64(b)) * 1099511628211
	}
	return h
}
