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

// A Reason says why a question had no good answer.
type Reason uint8

// The reasons, a closed set.
const (
	Timeout     Reason = iota // nothing came in time
	Unreachable               // there was no way to ask, or the connection ended
	Malformed                 // what came is no answer to the question
	ServFail                  // the server could not
	NXDomain                  // the name does not exist
	NoData                    // there is no record
	OtherRcode                // the server said another response code, such as REFUSED
	NumReasons  = int(iota)
)

// String is the reason in lower-case words, joined by an underscore.
func (r Reason) String() string {
	names := [NumReasons]string{"timeout", "unreachable", "malformed", "servfail", "nxdomain", "nodata", "other_rcode"}
	if int(r) >= len(names) {
		return "unknown"
	}
	return names[r]
}

// Reasons names all of them.
func Reasons() []string {
	list := make([]string, NumReasons)
	for i := range list {
		list[i] = Reason(i).String()
	}
	return list
}

// A failure is why a question had no good answer, with words for a person.
type failure struct {
	reason Reason
	what   string
}

// Error implements error.
func (f *failure) Error() string { return f.what }

// classify tells a failure to exchange messages.
func (c *Config) classify(err error) *failure {
	var unread *dns.Error
	var timeout net.Error
	var op *net.OpError
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return &failure{Timeout, fmt.Sprintf("no answer within %s", c.Timeout)}
	case errors.As(err, &unread):
		return &failure{Malformed, "what came could not be read: " + unread.Error()}
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return &failure{Unreachable, "the connection ended without an answer"}
	case errors.As(err, &op):
		err = op.Err // without the addresses, one of which is another each time
	}
	return &failure{Unreachable, err.Error()}
}

// checkAnswer says what is wrong with an answer, nil if nothing is.
func checkAnswer(q, r *dns.Msg) *failure {
	switch {
	case !r.Response, len(r.Question) != 1, !sameQuestion(q.Question[0], r.Question[0]):
		return &failure{Malformed, "what came is no answer to the question"}
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

// sameQuestion reports whether an answer repeats the question, in any case of letters.
func sameQuestion(a, b dns.Question) bool {
	return a.Qtype == b.Qtype && a.Qclass == b.Qclass && dns.CanonicalName(a.Name) == dns.CanonicalName(b.Name)
}

func rcode(code int) string {
	if name, ok := dns.RcodeToString[code]; ok {
		return name
	}
	return fmt.Sprintf("response code %d", code)
}

// extendedError is the server's own reason (RFC 8914), as far as it gives one that is
// known. Its free text is not told: it may be anything.
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
