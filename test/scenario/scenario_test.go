// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/tools/txtar"

	"github.com/nodecache/node-cache/pkg/agent"
	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/upstream/upstreamtest"
	"github.com/nodecache/node-cache/pkg/wire"
)

func TestScenarios(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			t.Parallel()
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			synctest.Test(t, func(t *testing.T) { runScenario(t, txtar.Parse(data)) })
		})
	}
}

// A scenarioRun is a scenario being played.
type scenarioRun struct {
	t               *testing.T
	files           map[string]string
	mu              sync.Mutex // guards network
	network         upstreamtest.Network
	queriesSeen     map[netip.AddrPort]int
	repliesBySource map[string]uint64 // replies by source, when last looked at
	agent           *agent.Agent
	last            reply
	waiting         []chan reply
}

// A reply is what a client got, and after how long.
type reply struct {
	msg  *dns.Msg
	took time.Duration
}

func runScenario(t *testing.T, archive *txtar.Archive) {
	t.Helper()
	s := &scenarioRun{t: t, files: map[string]string{}, network: upstreamtest.Network{}, queriesSeen: map[netip.AddrPort]int{}, repliesBySource: map[string]uint64{}}
	for _, f := range archive.Files {
		s.files[f.Name] = string(f.Data)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	s.start(ctx, ended)
	for n, line := range strings.Split(string(archive.Comment), "\n") {
		line, _, _ = strings.Cut(line, "#")
		if words := strings.Fields(line); len(words) > 0 {
			if err := s.command(words); err != nil {
				t.Errorf("line %d: %s: %v", n+1, strings.TrimSpace(line), err)
			}
		}
	}
	stop()
	if err := <-ended; err != nil {
		t.Errorf("agent ended: %v", err)
	}
}

// start runs an agent without sockets of its own.
func (s *scenarioRun) start(ctx context.Context, ended chan<- error) {
	cfg, err := s.config("config")
	if err != nil {
		s.t.Fatal(err)
	}
	log := &bytes.Buffer{}
	s.agent, err = agent.New(agent.Options{Config: &cfg, Version: "scenario", Log: log, Dial: s.dial})
	if err != nil {
		s.t.Fatal(err)
	}
	go func() { ended <- s.agent.Run(ctx) }()
	<-s.agent.Ready()
}

// dial connects to the server that is at addr now.
func (s *scenarioRun) dial(ctx context.Context, network string, addr netip.AddrPort) (net.Conn, error) {
	now := upstreamtest.Network{}
	s.mu.Lock()
	if server, ok := s.network[addr]; ok {
		now[addr] = server
	}
	s.mu.Unlock()
	return now.Dial(ctx, network, addr)
}

func (s *scenarioRun) config(name string) (config.Config, error) {
	cfg, err := config.Parse([]byte(s.files[name]), config.Agent)
	cfg.Listen.Addresses = nil
	cfg.Admin = config.Admin{}
	return cfg, err
}

func (s *scenarioRun) command(words []string) error {
	args := words[1:]
	switch words[0] {
	case "upstream":
		return s.upstream(args)
	case "query":
		s.last = <-s.query(args)
	case "ask":
		s.waiting = append(s.waiting, s.query(args))
	case "settle":
		for _, c := range s.waiting {
			s.last = <-c
		}
		s.waiting = nil
	case "expect":
		return s.expect(args)
	case "within":
		limit, err := time.ParseDuration(args[0])
		if err == nil && s.last.took > limit {
			err = fmt.Errorf("took %s", s.last.took)
		}
		return err
	case "asked":
		return s.expectQueries(args)
	case "given":
		total := s.agent.Status().Queries.BySource[args[0]]
		got := total - s.repliesBySource[args[0]]
		s.repliesBySource[args[0]] = total
		if fmt.Sprint(got) != args[1] {
			return fmt.Errorf("there were %d", got)
		}
	case "elapse":
		d, err := time.ParseDuration(args[0])
		time.Sleep(d)
		return err
	case "reload":
		cfg, err := s.config(args[0])
		s.agent.Reload(cfg, err)
		if !s.agent.Status().Config.LastOK {
			return fmt.Errorf("refused: %s", s.agent.Status().Config.LastError)
		}
	case "refused":
		cfg, err := s.config(args[0])
		s.agent.Reload(cfg, err)
		if s.agent.Status().Config.LastOK {
			return fmt.Errorf("taken")
		}
	default:
		return fmt.Errorf("no such command")
	}
	return nil
}

func (s *scenarioRun) upstream(args []string) error {
	addr, err := netip.ParseAddrPort(args[0])
	if err != nil {
		return err
	}
	var script upstreamtest.Script
	s.mu.Lock()
	defer s.mu.Unlock()
	switch args[1] {
	case "refused":
		delete(s.network, addr)
		return nil
	case "silent":
		script = upstreamtest.Always(upstreamtest.Action{Drop: true})
	case "garbage":
		script = upstreamtest.Always(upstreamtest.Action{Raw: []upstreamtest.Raw{func([]byte) []byte { return []byte("no message") }}})
	case "rcode":
		script = upstreamtest.Always(upstreamtest.Action{Rcode: dns.StringToRcode[args[2]]})
	case "zone":
		delay := time.Duration(0)
		if len(args) > 3 {
			if delay, err = time.ParseDuration(args[3]); err != nil {
				return err
			}
		}
		if script, err = zone(s.files[args[2]], delay); err != nil {
			return err
		}
	default:
		return fmt.Errorf("no such behaviour")
	}
	if server := s.network[addr]; server != nil {
		server.SetScript(script)
	} else {
		s.network[addr] = upstreamtest.New(script)
		s.queriesSeen[addr] = 0
	}
	return nil
}

// zone answers from records in zone file notation, as an authoritative server
// does: with the zone's SOA, if it has one, in denials.
func zone(text string, delay time.Duration) (upstreamtest.Script, error) {
	var records []dns.RR
	parser := dns.NewZoneParser(strings.NewReader(text), ".", "")
	for rr, ok := parser.Next(); ok; rr, ok = parser.Next() {
		records = append(records, rr)
	}
	answer := func(q []byte) []byte {
		var m, r dns.Msg
		if m.Unpack(q) != nil {
			return nil
		}
		r.SetReply(&m)
		r.RecursionAvailable = true
		exists, found := follow(records, m.Question[0].Name, m.Question[0].Qtype, &r)
		if !found {
			if !exists {
				r.Rcode = dns.RcodeNameError
			}
			for _, rr := range records {
				if rr.Header().Rrtype == dns.TypeSOA {
					r.Ns = append(r.Ns, rr)
				}
			}
		}
		out, err := r.Pack()
		if err != nil {
			panic(err)
		}
		return out
	}
	return upstreamtest.Always(upstreamtest.Action{Delay: delay, Raw: []upstreamtest.Raw{answer}}), parser.Err()
}

// follow adds the records of a name and type to the answer, with the aliases on the way, and reports whether the last name
// has records at all, and of the type.
func follow(records []dns.RR, name string, qtype uint16, r *dns.Msg) (exists, found bool) {
	alias := ""
	for _, rr := range records {
		if !strings.EqualFold(rr.Header().Name, name) {
			continue
		}
		exists = true
		c, isAlias := rr.(*dns.CNAME)
		if rr.Header().Rrtype == qtype || isAlias {
			r.Answer = append(r.Answer, rr)
		}
		found = found || rr.Header().Rrtype == qtype
		if isAlias {
			alias = c.Target
		}
	}
	if alias != "" && !found {
		return follow(records, alias, qtype, r)
	}
	return exists, found
}

// A client waits for one reply.
type client struct {
	sent time.Time
	got  chan reply
}

// Reply implements [wire.Replier].
func (c *client) Reply(msg []byte, _ *wire.SendBatch) {
	r := reply{took: time.Since(c.sent)}
	if msg != nil {
		r.msg = new(dns.Msg)
		if err := r.msg.Unpack(msg); err != nil {
			r.msg = nil
		}
	}
	c.got <- r
}

// query sends a query through a worker of its own.
func (s *scenarioRun) query(args []string) chan reply {
	m := new(dns.Msg).SetQuestion(dns.Fqdn(args[0]), dns.StringToType[args[1]])
	m.SetEdns0(1232, slices.Contains(args, "+do"))
	m.CheckingDisabled = slices.Contains(args, "+cd")
	m.RecursionDesired = !slices.Contains(args, "+norec")
	pkt, err := m.Pack()
	if err != nil {
		s.t.Fatal(err)
	}
	c := &client{sent: time.Now(), got: make(chan reply, 1)}
	from := wire.Peer{Addr: netip.MustParseAddrPort("10.0.0.9:5353"), Stream: slices.Contains(args, "+tcp")}
	worker := s.agent.NewWorker()
	out, verdict := worker.AnswerFromMemory(pkt, &from, c.sent, nil)
	switch verdict {
	case wire.Answered:
		c.Reply(out, nil)
	case wire.Missed:
		worker.Resolve(&from, c.sent, c)
	case wire.Dropped:
		c.Reply(nil, nil)
	}
	worker.Flush(time.Now())
	return c.got
}

// expect compares the last reply with what is wanted of it.
func (s *scenarioRun) expect(args []string) error {
	m := s.last.msg
	if m == nil {
		return fmt.Errorf("there was no reply, or one that cannot be read")
	}
	if got := dns.RcodeToString[m.Rcode]; got != args[0] {
		return fmt.Errorf("rcode %s", got)
	}
	var want []string
	for _, word := range args[1:] {
		key, value, found := strings.Cut(word, "=")
		switch {
		case found && key == "ttl":
			if got := fmt.Sprint(firstTTL(m)); got != value {
				return fmt.Errorf("ttl %s", got)
			}
		case found && key == "ede":
			if got := ede(m); got != value {
				return fmt.Errorf("extended error %q", got)
			}
		default:
			want = append(want, word)
		}
	}
	got := []string{}
	for _, rr := range m.Answer {
		got = append(got, strings.TrimPrefix(rr.String(), rr.Header().String()))
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) && len(got)+len(want) > 0 {
		return fmt.Errorf("answers %q", got)
	}
	return nil
}

// firstTTL is the TTL of the reply's first record, of any section.
func firstTTL(m *dns.Msg) int64 {
	for _, section := range [][]dns.RR{m.Answer, m.Ns} {
		if len(section) > 0 {
			return int64(section[0].Header().Ttl)
		}
	}
	return -1
}

func ede(m *dns.Msg) string {
	if opt := m.IsEdns0(); opt != nil {
		for _, o := range opt.Option {
			if e, ok := o.(*dns.EDNS0_EDE); ok {
				return strconv.Itoa(int(e.InfoCode))
			}
		}
	}
	return "none"
}

func (s *scenarioRun) expectQueries(args []string) error {
	addr, err := netip.ParseAddrPort(args[0])
	if err != nil {
		return err
	}
	synctest.Wait() // background refreshes included
	total := 0
	if server := s.network[addr]; server != nil {
		total = len(server.Queries())
	}
	got := total - s.queriesSeen[addr]
	s.queriesSeen[addr] = total
	if fmt.Sprint(got) != args[1] {
		return fmt.Errorf("it got %d", got)
	}
	return nil
}
