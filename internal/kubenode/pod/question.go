// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/miekg/dns"
)

// A question is what a client asks, with the answer that it expects.
type question struct {
	name string // absolute
	kind uint16
	want string // data of a record of that type, as zone files have it; empty: any
}

// errWrong is an answer without the record that was asked for.
var errWrong = errors.New("not the answer")

// questions reads a list of NAME, NAME/TYPE and NAME/TYPE/DATA.
func questions(list string) ([]question, error) {
	var all []question
	for text := range strings.SplitSeq(list, ",") {
		q := question{kind: dns.TypeA}
		name, rest, typed := strings.Cut(text, "/")
		q.name = dns.Fqdn(name)
		if typed {
			var kind string
			kind, q.want, _ = strings.Cut(rest, "/")
			if q.kind = dns.StringToType[kind]; q.kind == 0 {
				return nil, fmt.Errorf("question %q: no such type", text)
			}
		}
		all = append(all, q)
	}
	return all, nil
}

func (q question) message() *dns.Msg { return new(dns.Msg).SetQuestion(q.name, q.kind) }

// check fails with errWrong unless an answer has what is wanted.
func (q question) check(answer *dns.Msg) error {
	if answer.Rcode == dns.RcodeSuccess && slices.ContainsFunc(answer.Answer, q.matches) {
		return nil
	}
	return fmt.Errorf("%w: %s %s: %s with %d records, %v", errWrong, q.name, dns.TypeToString[q.kind],
		dns.RcodeToString[answer.Rcode], len(answer.Answer), answer.Answer)
}

// matches reports whether a record is what is wanted.
func (q question) matches(rr dns.RR) bool {
	head := rr.Header()
	return head.Rrtype == q.kind && (q.want == "" || strings.TrimPrefix(rr.String(), head.String()) == q.want)
}
