// SPDX-License-Identifier: Apache-2.0

package intercept

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"

	"github.com/miekg/dns"
)

// SelfName is what a probe asks for, in class CH and of type TXT. The agent answers
// with one string, its token, and a TTL of 0.
const SelfName = "self.node-cache."

var (
	// errWrong says that an answer came, but not the agent's to this query.
	errWrong = errors.New("not this agent's answer")
	// errForeign is an errWrong that comes from no agent at all. During a hand-over two
	// agents read the same sockets for a moment, each with its token.
	errForeign = fmt.Errorf("another process answers here: %w", errWrong)
)

// maxAnswer is more than the right answer is ever long.
const maxAnswer = 512

// ask sends the self-query over conn and reads until the agent's answer. Over UDP
// what does not belong to the query is passed over.
func ask(conn net.Conn, network, token string) error {
	q := new(dns.Msg)
	q.SetQuestion(SelfName, dns.TypeTXT)
	q.Question[0].Qclass = dns.ClassCHAOS
	q.RecursionDesired = false
	packed, err := q.Pack()
	if err != nil {
		return fmt.Errorf("packing the query: %w", err)
	}
	if network == "tcp" {
		return askStream(conn, q, packed, token)
	}
	if _, err := conn.Write(packed); err != nil {
		return fmt.Errorf("sending the query: %w", err)
	}
	buf := make([]byte, maxAnswer)
	for {
		n, err := conn.Read(buf)
		if err != nil {
			return fmt.Errorf("waiting for the answer: %w", err)
		}
		a := new(dns.Msg)
		if a.Unpack(buf[:n]) != nil || a.Id != q.Id || !a.Response {
			continue
		}
		return checkAnswer(q, a, token)
	}
}

func askStream(conn net.Conn, q *dns.Msg, packed []byte, token string) error {
	framed := binary.BigEndian.AppendUint16(nil, uint16(len(packed)))
	if _, err := conn.Write(append(framed, packed...)); err != nil {
		return fmt.Errorf("sending the query: %w", err)
	}
	var head [2]byte
	if _, err := io.ReadFull(conn, head[:]); err != nil {
		return fmt.Errorf("waiting for the answer: %w", err)
	}
	size := int(binary.BigEndian.Uint16(head[:]))
	if size > maxAnswer {
		return fmt.Errorf("%d bytes: %w", size, errForeign)
	}
	buf := make([]byte, size)
	if _, err := io.ReadFull(conn, buf); err != nil {
		return fmt.Errorf("reading the answer: %w", err)
	}
	a := new(dns.Msg)
	if err := a.Unpack(buf); err != nil {
		return fmt.Errorf("reading the answer: %w", errors.Join(err, errForeign))
	}
	return checkAnswer(q, a, token)
}

// checkAnswer says what makes a another answer than that to q by the agent with this token.
func checkAnswer(q, a *dns.Msg, token string) error {
	switch {
	case a.Id != q.Id || !a.Response || len(a.Question) != 1 ||
		a.Question[0].Qtype != q.Question[0].Qtype || a.Question[0].Qclass != q.Question[0].Qclass ||
		!strings.EqualFold(a.Question[0].Name, q.Question[0].Name):
		return fmt.Errorf("another question: %w", errForeign)
	case a.Rcode != dns.RcodeSuccess:
		return fmt.Errorf("rcode %s: %w", dns.RcodeToString[a.Rcode], errForeign)
	case len(a.Answer) != 1:
		return fmt.Errorf("%d records: %w", len(a.Answer), errForeign)
	}
	txt, ok := a.Answer[0].(*dns.TXT)
	switch {
	case !ok || len(txt.Txt) != 1:
		return fmt.Errorf("no token: %w", errForeign)
	case txt.Txt[0] != token:
		return fmt.Errorf("another token: %w", errWrong)
	}
	return nil
}
