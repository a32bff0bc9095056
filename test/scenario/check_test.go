// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/pkg/admin/status"
	"github.com/nodecache/node-cache/pkg/upstream/upstreamtest"
	"github.com/nodecache/node-cache/pkg/wire"
)

// expect compares the last reply with the expected one.
func (s *scenarioRun) expect(args []string) error {
	if args[0] == "none" {
		if s.last.raw != nil {
			return errors.New("there was a reply")
		}
		return nil
	}
	m := s.last.msg
	if m == nil {
		return errors.New("there was no reply, or one that cannot be read")
	}
	if got := rcodeName(m); got != args[0] {
		return fmt.Errorf("rcode %s", got)
	}
	counted := false // the number of answers is enough
	has := map[string]func() string{
		"ttl":        func() string { return firstTTL(m) },
		"ede":        func() string { return ede(m) },
		"reason":     func() string { return cmp.Or(extendedError(m), new(dns.EDNS0_EDE)).ExtraText },
		"flags":      func() string { return flagsOf(m) },
		"answers":    func() string { counted = true; return strconv.Itoa(len(m.Answer)) },
		"authority":  func() string { return strconv.Itoa(len(m.Ns)) },
		"additional": func() string { return strconv.Itoa(len(withoutOPT(m.Extra))) },
		"opt":        func() string { return yes(m.IsEdns0() != nil) },
		"options":    func() string { return options(m) },
		"explain":    func() string { return explanation(m) },
		"question":   func() string { return m.Question[0].Name },
		"owner":      func() string { return firstOf(m).Header().Name },
	}
	want, err := compare(args[1:], has, func(key, value string) (bool, error) {
		n, err := strconv.Atoi(value)
		isSize := key == "size" && err == nil
		if isSize && len(s.last.raw) > n {
			return true, fmt.Errorf("size %d", len(s.last.raw))
		}
		return isSize, nil
	})
	if err != nil || counted {
		return err
	}
	got := []string{}
	for _, rr := range m.Answer {
		got = append(got, rdata(rr))
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) && len(got)+len(want) > 0 {
		return fmt.Errorf("answers %q", got)
	}
	return nil
}

func rcodeName(m *dns.Msg) string {
	if m.Rcode == dns.RcodeBadVers {
		return "BADVERS" // in a reply without a signature
	}
	return dns.RcodeToString[m.Rcode]
}

func rdata(rr dns.RR) string {
	if generic, ok := rr.(*dns.RFC3597); ok {
		return "hex:" + generic.Rdata
	}
	return strings.TrimPrefix(rr.String(), rr.Header().String())
}

// compare checks KEY=VALUE words and returns the words without a known key.
func compare(words []string, has map[string]func() string, other func(key, value string) (bool, error)) (rest []string, err error) {
	for _, word := range words {
		key, want, found := strings.Cut(word, "=")
		if get, ok := has[key]; found && ok {
			if got := get(); got != want {
				return nil, fmt.Errorf("%s %s", key, got)
			}
			continue
		}
		if known, err := other(key, want); err != nil {
			return nil, err
		} else if known {
			continue
		}
		rest = append(rest, word)
	}
	return rest, nil
}

// firstOf returns the reply's first record, of any section; an empty one if there is none.
func firstOf(m *dns.Msg) dns.RR {
	for _, section := range [][]dns.RR{m.Answer, m.Ns} {
		if len(section) > 0 {
			return section[0]
		}
	}
	return &dns.ANY{}
}

func firstTTL(m *dns.Msg) string {
	if len(m.Answer)+len(m.Ns) == 0 {
		return "-1"
	}
	return fmt.Sprint(firstOf(m).Header().Ttl)
}

func ede(m *dns.Msg) string {
	if e := extendedError(m); e != nil {
		return strconv.Itoa(int(e.InfoCode))
	}
	return "none"
}

// extendedError returns the Extended DNS Error, nil if there is none.
func extendedError(m *dns.Msg) *dns.EDNS0_EDE {
	if opt := m.IsEdns0(); opt != nil {
		for _, o := range opt.Option {
			if e, ok := o.(*dns.EDNS0_EDE); ok {
				return e
			}
		}
	}
	return nil
}

// options lists the codes of EDNS options but the Extended DNS Error.
func options(m *dns.Msg) string {
	var codes []string
	if opt := m.IsEdns0(); opt != nil {
		for _, o := range opt.Option {
			if o.Option() != dns.EDNS0EDE {
				codes = append(codes, strconv.Itoa(int(o.Option())))
			}
		}
	}
	if codes == nil {
		return "none"
	}
	return strings.Join(codes, ",")
}

// explanation returns the text of option 65305.
func explanation(m *dns.Msg) string {
	if opt := m.IsEdns0(); opt != nil {
		for _, o := range opt.Option {
			if local, ok := o.(*dns.EDNS0_LOCAL); ok && local.Code == wire.OptionExplain {
				return string(local.Data)
			}
		}
	}
	return "none"
}

func flagsOf(m *dns.Msg) string {
	var set []string
	for _, f := range []struct {
		name string
		on   bool
	}{
		{"aa", m.Authoritative},
		{"tc", m.Truncated},
		{"rd", m.RecursionDesired},
		{"ra", m.RecursionAvailable},
		{"ad", m.AuthenticatedData},
		{"cd", m.CheckingDisabled},
	} {
		if f.on {
			set = append(set, f.name)
		}
	}
	return strings.Join(set, ",")
}

func withoutOPT(section []dns.RR) []dns.RR {
	return slices.DeleteFunc(slices.Clone(section), func(rr dns.RR) bool { return rr.Header().Rrtype == dns.TypeOPT })
}

func yes(is bool) string {
	if is {
		return "yes"
	}
	return "no"
}

func (s *scenarioRun) await(args []string) (err error) {
	for range 1000 {
		if err = s.query(s.lastQuery); err != nil {
			return err
		}
		if err = s.expect(args); err == nil {
			return nil
		}
		time.Sleep(10 * time.Millisecond)
	}
	return err
}

func (s *scenarioRun) within(args []string) error {
	limit, err := time.ParseDuration(args[0])
	if err == nil && s.last.took > limit {
		err = fmt.Errorf("took %s", s.last.took)
	}
	return err
}

func (s *scenarioRun) replies(args []string) error {
	n := 0
	for _, r := range s.settled {
		if r.msg != nil && dns.RcodeToString[r.msg.Rcode] == args[0] || r.raw == nil && args[0] == "none" {
			n++
		}
	}
	return number(n, args[1])
}

func (s *scenarioRun) rotates(args []string) error {
	seen := map[string]bool{}
	for range 200 {
		if err := s.query(s.lastQuery); err != nil {
			return err
		}
		if s.last.msg != nil {
			seen[firstOf(s.last.msg).String()] = true
		}
	}
	return number(len(seen), args[0])
}

func (s *scenarioRun) queriesTo(addr string) (netip.AddrPort, []upstreamtest.Query, error) {
	at, err := netip.ParseAddrPort(addr)
	if err != nil {
		return at, nil, err
	}
	s.wait() // background refreshes included
	s.mu.Lock()
	server := s.network[at]
	s.mu.Unlock()
	if server == nil {
		return at, nil, nil
	}
	return at, server.Queries(), nil
}

func (s *scenarioRun) asked(args []string) error {
	addr, queries, err := s.queriesTo(args[0])
	if err != nil {
		return err
	}
	total := map[string]int{"": len(queries)}
	for _, q := range queries {
		total[q.Network]++
	}
	network := ""
	if len(args) > 2 {
		network = args[2]
	}
	got := total[network] - s.queriesSeen[addr][network]
	if network == "" {
		s.queriesSeen[addr] = total
	}
	return number(got, args[1])
}

func (s *scenarioRun) sent(args []string) error {
	_, queries, err := s.queriesTo(args[0])
	if err != nil || len(queries) == 0 {
		return fmt.Errorf("no query: %w", err)
	}
	q := queries[len(queries)-1]
	m := new(dns.Msg)
	if err := m.Unpack(q.Raw); err != nil {
		return err
	}
	opt := m.IsEdns0()
	rest, err := compare(args[1:], map[string]func() string{
		"network": func() string { return q.Network },
		"name":    func() string { return q.Name },
		"type":    func() string { return dns.TypeToString[q.Type] },
		"flags":   func() string { return flagsOf(m) },
		"size": func() string {
			if opt == nil {
				return "none"
			}
			return strconv.Itoa(int(opt.UDPSize()))
		},
		"do":      func() string { return yes(opt != nil && opt.Do()) },
		"options": func() string { return options(m) },
		"subnet":  func() string { return subnetOf(opt) },
		"case": func() string {
			if m.Question[0].Name == strings.ToLower(m.Question[0].Name) {
				return "lower"
			}
			return "mixed"
		},
	}, func(string, string) (bool, error) { return false, nil })
	if err == nil && len(rest) > 0 {
		err = fmt.Errorf("no such property: %s", rest)
	}
	return err
}

func subnetOf(opt *dns.OPT) string {
	if opt != nil {
		for _, o := range opt.Option {
			if e, ok := o.(*dns.EDNS0_SUBNET); ok {
				return fmt.Sprintf("%s/%d", e.Address, e.SourceNetmask)
			}
		}
	}
	return "none"
}

func (s *scenarioRun) server(args []string) error {
	s.wait()
	status := s.agent.Status()
	servers := map[string][]string{}
	for _, u := range status.Upstreams {
		servers[address(u.Server)] = append([]string{u.State}, u.Limitations...)
	}
	if status.Cluster != nil && status.Cluster.Central != nil {
		for _, u := range status.Cluster.Central.Endpoints {
			servers[address(u)] = append([]string{u.State}, u.Limitations...)
		}
	}
	if got := servers[args[0]]; !slices.Equal(got, args[1:]) {
		return fmt.Errorf("it is %q, of %q", got, servers)
	}
	return nil
}

// address returns an upstream's address without its protocol.
func address(u status.Server) string {
	_, addr, _ := strings.Cut(u.Address, "://")
	return addr
}

func (s *scenarioRun) given(args []string) error {
	total := s.agent.Status().Queries.BySource[args[0]]
	got := total - s.repliesBySource[args[0]]
	s.repliesBySource[args[0]] = total
	return number(int(got), args[1])
}

func (s *scenarioRun) logged(args []string) error {
	s.wait()
	total := strings.Count(s.log.String(), `"msg":"query"`)
	got := total - s.logSeen
	s.logSeen = total
	return number(got, args[0])
}

func (s *scenarioRun) expectShed(args []string) error {
	total := s.agent.Status().Queries.Shed
	got := total - s.shed
	s.shed = total
	return number(int(got), args[0])
}
