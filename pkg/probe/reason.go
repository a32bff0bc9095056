// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/miekg/dns"
)

// A Reason is why a query failed.
type Reason uint8

// The reasons, a closed set.
const (
	Timeout     Reason = iota // no answer in time
	Unreachable               // the server could not be reached, or closed the connection
	Malformed                 // the message is not an answer to the question
	ServFail                  // SERVFAIL
	NXDomain                  // the name does not exist
	NoData                    // NOERROR without a record
	OtherRcode                // another response code, such as REFUSED
	NumReasons  = int(iota)
)

// String returns the reason in lower case with underscores.
func (r Reason) String() string {
	names := [NumReasons]string{"timeout", "unreachable", "malformed", "servfail", "nxdomain", "nodata", "other_rcode"}
	if int(r) >= len(names) {
		return "unknown"
	}
	return names[r]
}

// Reasons returns the names of all reasons.
func Reasons() []string {
	list := make([]string, NumReasons)
	for i := range list {
		list[i] = Reason(i).String()
	}
	return list
}

// A failure is why a query failed, with a description.
type failure struct {
	reason Reason
	what   string
}

// Error implements error.
func (f *failure) Error() string { return f.what }

// classify maps an error of exchange to a failure.
func (c *Config) classify(err error) *failure {
	var unread *dns.Error
	var timeout net.Error
	var op *net.OpError
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return &failure{Timeout, fmt.Sprintf("no answer within %s", c.Timeout)}
	case errors.As(err, &unread):
		return &failure{Malformed, "unreadable answer: " + unread.Error()}
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return &failure{Unreachable, "connection closed without an answer"}
	case errors.As(err, &op):
		err = op.Err // without the addresses: the local port changes each time
	}
	return &failure{Unreachable, err.Error()}
}

// checkAnswer returns why an answer is not good, or nil.
func checkAnswer(q, r *dns.Msg) *failure {
	switch {
	case !r.Response, len(r.Question) != 1, !sameQuestion(q.Question[0], r.Question[0]):
		return &failure{Malformed, "message does not answer the question"}
	case r.Rcode == dns.RcodeServerFailure:
		return &failure{ServFail, "SERVFAIL" + extendedError(r)}
	case r.Rcode == dns.RcodeNameError:
		return &failure{NXDomain, "NXDOMAIN: the name does not exist"}
	case r.Rcode != dns.RcodeSuccess:
		return &failure{OtherRcode, rcode(r.Rcode) + extendedError(r)}
	case len(r.Answer) == 0:
		return &failure{NoData, "no record of that type"}
	}
	return nil
}

// sameQuestion reports whether an answer repeats the question, in any case.
func sameQuestion(a, b dns.Question) bool {
	return a.Qtype == b.Qtype && a.Qclass == b.Qclass && dns.CanonicalName(a.Name) == dns.CanonicalName(b.Name)
}

func rcode(code int) string {
	if name, ok := dns.RcodeToString[code]; ok {
		return name
	}
	return fmt.Sprintf("response code %d", code)
}

// extendedError returns the server's Extended DNS Error (RFC 8914) if its code is known. It omits
// the free text, which may contain anything.
func extendedError(r *dns.Msg) string {
	opt := r.IsEdns0()
	if opt == nil {
		return ""
	}
	for _, o := range opt.Option {
		if e, ok := o.(*dns.EDNS0_EDE); ok && dns.ExtendedErrorCodeToString[e.InfoCode] != "" {
			return ": " + dns.ExtendedErrorCodeToString[e.InfoCode]
		}
	}
	return ""
}
