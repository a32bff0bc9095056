// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/nodecache/node-cache/pkg/wire"
)

// ErrNoUpstream says that a pool has nobody to ask.
var ErrNoUpstream = errors.New("no usable upstream")

var (
	errNoEndpoint = fmt.Errorf("no endpoint: %w", ErrNoUpstream)
	errAllDown    = errors.New("every upstream is down")
	errRate       = fmt.Errorf("queries a second: %w", errLimit)
	errLoop       = errors.New("queries to it come back here")
	errNoTCP      = errors.New("truncated, and its connections fail")
	errShortQuery = errors.New("query shorter than a header")
	errMalformed  = errors.New("malformed answer")
	errRcode      = errors.New("unhelpful response code")
	errLame       = fmt.Errorf("%w: a referral to others", errRcode)
	errLimit      = errors.New("limit reached") // one of ours, not the upstream's fault
	errPanic      = errors.New("recovered from a panic")
)

// A Reason says why a query found no good answer.
type Reason uint8

// The reasons, the least telling first: where tries ended differently, the
// last of this list is reported.
const (
	Network    Reason = iota // every try ended in a network error or at a limit of ours
	Timeout                  // at least one try was still silent at the end
	Malformed                // an upstream answered what cannot be read
	Rcode                    // an upstream answered, but neither NOERROR nor NXDOMAIN
	NoUpstream               // there is nobody to ask
)

// String is the reason in one lower-case word.
func (r Reason) String() string {
	switch r {
	case Network:
		return "network"
	case Timeout:
		return "timeout"
	case Malformed:
		return "malformed"
	case Rcode:
		return "rcode"
	case NoUpstream:
		return "no-upstream"
	}
	return "unknown"
}

// A Failure is the error of every query that found no good answer.
//
//nolint:errname // it is the outcome of an exchange more than an error: callers turn it into a reply
type Failure struct {
	Reason Reason
	Rcode  uint16 // the last bad response code; of use where Reason is Rcode
	Err    error  // what the last try of that reason said; never nil
}

// Error is the reason and what is known about it.
func (f *Failure) Error() string {
	if f.Reason == Rcode {
		return fmt.Sprintf("asking upstreams: rcode %d", f.Rcode)
	}
	return fmt.Sprintf("asking upstreams: %s: %v", f.Reason, f.Err)
}

// Unwrap is the error below.
func (f *Failure) Unwrap() error { return f.Err }

// A Cause says what was wrong with one try or one message, for the counters.
type Cause uint8

// The causes, a closed set.
const (
	CauseTimeout     Cause = iota // silent for longer than its patience
	CauseConnRefused              // nobody listens there
	CauseNetwork                  // any other network error
	CauseLimit                    // a bound of ours: queries under way, their rate, connections, file descriptors
	CauseMalformed                // a message with the right ID and question that cannot be read
	CauseMismatch                 // a message that is not the answer, or not in the letters that were asked; late ones included
	CauseServFail                 // SERVFAIL
	CauseRefused                  // REFUSED
	CauseFormErr                  // FORMERR
	CauseNotImp                   // NOTIMP
	CauseRcode                    // any other bad response code
	CauseTLS                      // a certificate, or the way the upstream speaks TLS
	CauseLame                     // a referral to others in place of an answer
	NumCauses                     // how many there are
)

// String is the cause as a metric label.
func (c Cause) String() string {
	switch c {
	case CauseTimeout:
		return "timeout"
	case CauseConnRefused:
		return "conn_refused"
	case CauseNetwork:
		return "network"
	case CauseLimit:
		return "limit"
	case CauseMalformed:
		return "malformed"
	case CauseMismatch:
		return "mismatch"
	case CauseServFail:
		return "servfail"
	case CauseRefused:
		return "refused"
	case CauseFormErr:
		return "formerr"
	case CauseNotImp:
		return "notimp"
	case CauseRcode:
		return "rcode"
	case CauseTLS:
		return "tls"
	case CauseLame:
		return "lame"
	default:
		return "unknown"
	}
}

// errorCause sorts the errors of a try that was not cut short.
func errorCause(err error) Cause {
	switch {
	case errors.Is(err, errTLS):
		return CauseTLS
	case errors.Is(err, errSilent):
		return CauseTimeout
	case errors.Is(err, errLimit), errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		return CauseLimit
	case errors.Is(err, errMalformed):
		return CauseMalformed
	case errors.Is(err, syscall.ECONNREFUSED):
		return CauseConnRefused
	}
	return CauseNetwork
}

// rcodeCause sorts bad response codes.
func rcodeCause(rcode uint16) Cause {
	switch rcode {
	case wire.RcodeServFail:
		return CauseServFail
	case wire.RcodeRefused:
		return CauseRefused
	case wire.RcodeFormErr:
		return CauseFormErr
	case wire.RcodeNotImp:
		return CauseNotImp
	}
	return CauseRcode
}

// EDE is the Extended DNS Error (RFC 8914 section 4) that tells a client what
// the failure was.
func (f *Failure) EDE() int {
	switch f.Reason {
	case Network:
		return wire.EDENetworkError
	case Malformed:
		return wire.EDEInvalidData
	case NoUpstream:
		if !errors.Is(f.Err, errNoEndpoint) {
			return wire.EDENotReady
		}
	case Timeout, Rcode:
	}
	return wire.EDENoReachableAuthority
}
