// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/nodecache/node-cache/pkg/wire"
)

// ErrNoUpstream says that a pool has no upstream to ask.
var ErrNoUpstream = errors.New("no usable upstream")

var (
	errNoEndpoint = fmt.Errorf("no endpoint: %w", ErrNoUpstream)
	errAllDown    = errors.New("all upstreams are down")
	errRate       = fmt.Errorf("query rate: %w", errLimit)
	errLoop       = errors.New("loop detected")
	errNoTCP      = errors.New("answer truncated, and TCP fails")
	errShortQuery = errors.New("query shorter than a DNS header")
	errMalformed  = errors.New("malformed answer")
	errRcode      = errors.New("bad response code")
	errLame       = fmt.Errorf("%w: referral", errRcode)
	errLimit      = errors.New("limit reached") // a limit of this process, not an upstream's fault
	errPanic      = errors.New("recovered from a panic")
	errTLS        = errors.New("TLS failed")                         // marks certificate errors and other TLS protocol errors
	errDied       = errors.New("connection ended")                   // marks the error of a connection that ended with pending queries
	errRemoved    = fmt.Errorf("upstream removed: %w", errLimit)     // the upstream is no longer in the pool's list
	errStatus     = errors.New("HTTP response without a DNS answer") // marks HTTP responses that carry none
	errSilent     = errors.New("peer does not answer")
)

// Why a connection ended. This process causes the first four.
var (
	errIdle      = errors.New("idle")
	errShutdown  = errors.New("shut down")
	errAged      = errors.New("too old")
	errAbandoned = errors.New("no query waits for it")
	errStuck     = errors.New("peer does not read")
)

// A Reason says why a query got no good answer.
type Reason uint8

// The reasons, least specific first: if attempts ended differently, the last one in this list is reported.
const (
	Network    Reason = iota // every attempt ended in a network error or at a limit of this process
	Timeout                  // at least one attempt was still unanswered at the end
	Malformed                // an upstream sent an answer that cannot be parsed
	Rcode                    // an upstream answered, but neither NOERROR nor NXDOMAIN
	NoUpstream               // there is no upstream to ask
)

// String returns the reason as a lower-case word.
func (r Reason) String() string {
	return label(int(r), "network", "timeout", "malformed", "rcode", "no-upstream")
}

// label returns the label with the index, or "unknown".
func label(i int, labels ...string) string {
	if i < len(labels) {
		return labels[i]
	}
	return "unknown"
}

// A Failure is the error of every query that found no good answer.
//
//nolint:errname // it is the outcome of an exchange more than an error: callers turn it into a reply
type Failure struct {
	Reason Reason
	cause  Cause // of the last attempt with that reason; unset without an attempt

	// Set only in the failure of one attempt:
	edns       bool // the answer had an OPT record, or was a referral
	headerOnly bool // the answer was a header without a question

	Rcode uint16    // last bad response code, if Reason is Rcode
	Err   error     // error of the last attempt with that reason; never nil
	from  *endpoint // upstream of that attempt; nil: no attempt was made
}

// Error returns the reason and its details.
func (f *Failure) Error() string {
	if f.Reason == Rcode {
		return fmt.Sprintf("asking upstreams: rcode %d", f.Rcode)
	}
	return fmt.Sprintf("asking upstreams: %s: %v", f.Reason, f.Err)
}

// Unwrap returns the wrapped error.
func (f *Failure) Unwrap() error { return f.Err }

// A Cause says what was wrong with one attempt or one message. It is a metric label.
type Cause uint8

// The causes, a closed set.
const (
	CauseTimeout     Cause = iota // no answer within the attempt's timeout
	CauseConnRefused              // connection refused
	CauseNetwork                  // any other network error
	CauseLimit                    // a limit of this process: pending queries, their rate, connections, file descriptors
	CauseMalformed                // a message with the right ID and question that cannot be parsed
	CauseMismatch                 // a message that is not the answer, has another case than the query, or came too late
	CauseServFail                 // SERVFAIL
	CauseRefused                  // REFUSED
	CauseFormErr                  // FORMERR
	CauseNotImp                   // NOTIMP
	CauseRcode                    // any other bad response code
	CauseTLS                      // certificate or TLS protocol error
	CauseLame                     // a referral instead of an answer
	NumCauses                     // number of causes
)

// String returns the cause as a metric label.
func (c Cause) String() string {
	return label(int(c), "timeout", "conn_refused", "network", "limit", "malformed", "mismatch", "servfail", "refused", "formerr",
		"notimp", "rcode", "tls", "lame")
}

// errorCause classifies the error of an attempt.
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

// failureOf describes the error of an attempt.
func failureOf(err error) Failure {
	cause := errorCause(err)
	return Failure{Reason: cause.reason(), Err: err, cause: cause}
}

// reason returns the reason for a query that got no answer.
func (c Cause) reason() Reason {
	if c == CauseMalformed {
		return Malformed
	}
	if c == CauseTimeout {
		return Timeout
	}
	return Network
}

// rcodeCause classifies a bad response code.
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

// Details returns the upstream that failed last, such as udp://192.0.2.1:53, and what was wrong with it: a [Cause]. If none
// was asked, server is empty and cause says why.
func (f *Failure) Details() (server, cause string) {
	switch {
	case f.from != nil:
		return f.from.label, f.cause.String()
	case f.Reason == NoUpstream:
		return "", "no_upstream"
	case errors.Is(f.Err, errAllDown):
		return "", "all_down"
	}
	return "", f.Reason.String()
}

// EDE returns the Extended DNS Error (RFC 8914 section 4) for the client.
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
