// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/kubetest"
	"github.com/nodecache/node-cache/internal/nodetest"
	"github.com/nodecache/node-cache/internal/proctest"
	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/upstream/upstreamtest"
)

// oldServer is the address of the CoreDNS that stays.
const oldServer = "203.0.113.1"

// TestCorpus runs CoreDNS with each of 113 public Corefiles, which have other names and addresses here, and two agents with what convert
// makes of it: one beside this CoreDNS, and one that replaces it. Each answer of an upstream depends on the name that it was asked for, and
// TXT is the upstream's address, so that answers show what was asked of whom. The agents must give CoreDNS's answers: an agent that
// replaces it may give others where the exit code of convert says that something is lost, but it must ask no other upstream.
func TestCorpus(t *testing.T) {
	t.Parallel()
	if !proctest.Soak() {
		t.Skip("starts 339 servers, beside tests that judge times: make soak")
	}
	text, err := os.ReadFile(filepath.Join("..", "..", "pkg", "convert", "testdata", "corpus.txt"))
	if err != nil {
		t.Fatal(err)
	}
	files := strings.Split(string(text)[3:], "\n== ")
	c := &corpus{cluster: kubetest.Start(t, kubetest.Options{}), authority: upstreamtest.NewAuthority(t, time.Now())}
	queue := make(chan string, len(files))
	for _, f := range files {
		queue <- f
	}
	close(queue)
	var tasks sync.WaitGroup
	for range 2 {
		n := c.newNetwork(t, string(text))
		tasks.Go(func() {
			for f := range queue {
				n.compare(t, f)
			}
		})
	}
	tasks.Wait()
	proctest.Figure(t, "%d Corefiles, %d questions: beside CoreDNS %d with other answers, %d with a loss; in its place %d and %d",
		len(files)-c.unread, c.questions, c.others[0], c.losses[0], c.others[1], c.losses[1])
	if want := 6; c.unread != want {
		t.Errorf("CoreDNS could not run %d Corefiles, want %d", c.unread, want)
	}
}

// A corpus is what the networks share.
type corpus struct {
	cluster   *kubetest.Cluster
	authority *upstreamtest.Authority

	mu                sync.Mutex // guards the following fields
	unread, questions int
	others, losses    [2]int // by Corefile, beside CoreDNS and in its place
}

// A corpusNetwork is a network with all upstreams of the corpus. Servers run on its node, one after the other.
type corpusNetwork struct {
	*nodetest.Network
	*corpus
	dir        string
	env        []string
	kubeconfig string // with an address of the API server that is on the node
	theirs     string // with one that is on the host of CoreDNS
}

func (c *corpus) newNetwork(t *testing.T, text string) *corpusNetwork {
	t.Helper()
	n := &corpusNetwork{Network: nodetest.Start(t, nodetest.Options{Pods: 1}), corpus: c, dir: t.TempDir()}
	roots := filepath.Join(n.dir, "roots.pem")
	c.authority.Trust(t, roots)
	n.env = append(os.Environ(), "SSL_CERT_FILE="+roots)
	n.kubeconfig, n.theirs = c.kubeconfigOn(t, n.Node), c.kubeconfigOn(t, n.Upstream)
	resolvConf, err := dns.ClientConfigFromFile("/etc/resolv.conf")
	if err != nil {
		t.Fatal(err)
	}
	serving := map[netip.AddrPort]bool{}
	if err := n.Upstream.AddAddress(netip.MustParseAddr(oldServer)); err != nil {
		t.Fatal(err)
	}
	for _, word := range append(resolvConf.Servers, strings.Fields(n.onNode(text))...) {
		target, err := config.ParseTarget(strings.TrimPrefix(word, "dns://"))
		if err != nil || target.Addr.Addr().IsLoopback() || !target.Addr.IsValid() || serving[target.Addr] {
			continue
		}
		serving[target.Addr] = true
		if err := n.Upstream.AddAddress(target.Addr.Addr()); err != nil && !errors.Is(err, os.ErrExist) {
			t.Fatal(err)
		}
		if err := n.Upstream.Do(func() error { return n.serve(t, &target) }); err != nil {
			t.Fatal(err)
		}
	}
	return n
}

// kubeconfigOn returns a kubeconfig with an address of the API server that is on a host.
func (c *corpus) kubeconfigOn(t *testing.T, host *nodetest.Host) (file string) {
	t.Helper()
	err := host.Do(func() error {
		api, err := kubetest.NewProxy(t.Context(), c.cluster.Address())
		if err != nil {
			return err
		}
		t.Cleanup(api.Close)
		file, err = c.cluster.KubeconfigAt(kubetest.Admin, api.Addr())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return file
}

// serve runs an upstream.
func (n *corpusNetwork) serve(t *testing.T, target *config.Target) error {
	t.Helper()
	handler := dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		r, name := new(dns.Msg).SetReply(q), strings.ToLower(q.Question[0].Name)
		header := dns.RR_Header{Name: q.Question[0].Name, Rrtype: q.Question[0].Qtype, Class: dns.ClassINET, Ttl: 60}
		sum := sha256.Sum256([]byte(name))
		switch header.Rrtype {
		case dns.TypeTXT:
			r.Answer = []dns.RR{&dns.TXT{Hdr: header, Txt: []string{target.Addr.String()}}}
		case dns.TypeA:
			r.Answer = []dns.RR{&dns.A{Hdr: header, A: net.IP{198, 18, sum[0], sum[1]}}}
		case dns.TypePTR:
			r.Answer = []dns.RR{&dns.PTR{Hdr: header, Ptr: fmt.Sprintf("h%x.example.", sum[:3])}}
		}
		_ = w.WriteMsg(r)
	})
	if target.Kind != config.TLS {
		s, err := proctest.ServeDNS(&net.ListenConfig{}, target.Addr, handler)
		if err == nil {
			t.Cleanup(s.Close)
		}
		return err
	}
	l, err := tls.Listen("tcp", target.Addr.String(), &tls.Config{GetCertificate: func(h *tls.ClientHelloInfo) (*tls.Certificate, error) {
		cert := n.authority.Issue(t, time.Now().Add(time.Hour), target.Addr.Addr().String(), cmp.Or(h.ServerName, "none.example"))
		return &cert, nil
	}})
	if err != nil {
		return err
	}
	s := &dns.Server{Listener: l, Handler: handler}
	go func() { _ = s.ActivateAndServe() }()
	t.Cleanup(func() { _ = l.Close() })
	return nil
}

// Lines of Corefiles that are edited, so that a server can run on this node.
var (
	bindLine       = regexp.MustCompile(`(?m)^\s*bind .*$`)
	pageAddress    = regexp.MustCompile(`(?m)^(\s*(?:health|prometheus|ready) +)[^\s:]*(:\d+)`)
	kubernetesLine = regexp.MustCompile(`(?m)^(\s*kubernetes\b[^{\n]*)(\{?)$`)
)

// onNode edits a Corefile so that a server can listen on the node and finds the API server.
func (n *corpusNetwork) onNode(text string) string {
	text = bindLine.ReplaceAllString(text, "")
	text = pageAddress.ReplaceAllString(text, "$1$2")
	text = kubernetesLine.ReplaceAllStringFunc(text, func(line string) string {
		line, isOpen := strings.CutSuffix(line, "{")
		line += " {\n kubeconfig " + n.kubeconfig
		if !isOpen {
			line += "\n}"
		}
		return line
	})
	return strings.NewReplacer(
		"class {$UNSET_IN_TEST}", "class all", " {$UNSET_IN_TEST}", "", "127.0.0.11", "198.51.100.11",
		"__PILLAR__LOCAL__DNS__", "169.254.20.10", "__PILLAR__DNS__SERVER__", "10.96.0.10", "__PILLAR__CLUSTER__DNS__", "10.96.0.10",
		"__PILLAR__DNS__DOMAIN__", "cluster.local", "__PILLAR__UPSTREAM__SERVERS__", "/etc/resolv.conf",
	).Replace(text)
}

// Lines of Corefiles that are edited for this CoreDNS.
var (
	proxyLine  = regexp.MustCompile(`(?m)^(\s*)proxy `)    // before CoreDNS 1.5
	policyLine = regexp.MustCompile(`(?m)^\s*policy \w+$`) // a random one asks all upstreams
	blockHead  = regexp.MustCompile(`(?m)^[^\s(}#][^\n]*\{$`)
	refused    = regexp.MustCompile(`Corefile:(\d+) - |no action found for directive '(\w+)'`)
)

// compare runs CoreDNS with a file, and each agent beside it, and asks both the same.
func (n *corpusNetwork) compare(t *testing.T, file string) {
	t.Helper()
	source, text, _ := strings.Cut(file, "\n")
	text = n.onNode(text)
	agents, names := make([]*exec.Cmd, 2), questionsIn(text)
	var port uint16
	isLoss := make([]bool, 2)
	for i := range agents {
		agents[i], port, isLoss[i] = n.converted(t, text, i == 1)
	}
	coreDNS, err := n.startCoreDNS(strings.ReplaceAll(text, n.kubeconfig, n.theirs), port)
	if err != nil {
		t.Logf("%s: %v", source, err)
		n.mu.Lock()
		defer n.mu.Unlock()
		n.unread++
		return
	}
	defer coreDNS.Kill()
	before, err := n.ask(coreDNS, fmt.Sprintf("%s:%d", oldServer, port), names)
	if err != nil {
		t.Errorf("%s: %v", source, err)
		return
	}
	for i, agent := range agents {
		inside := n.Node.Command(context.Background(), agent.Args[0], agent.Args[1:]...)
		inside.Env = n.env
		p, err := proctest.Launch("node-cache", inside)
		if err != nil {
			t.Errorf("%s: %v", source, err)
			return
		}
		after, err := n.ask(p, fmt.Sprintf("127.0.0.1:%d", port), names)
		p.Kill()
		if err != nil {
			t.Errorf("%s: %v", source, err)
			return
		}
		n.judge(t, source, text, i, isLoss[i], before, after)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.questions += len(before)
}

// judge compares the answers of CoreDNS with those of an agent.
func (n *corpusNetwork) judge(t *testing.T, source, text string, kind int, isLoss bool, before, after map[string][]string) {
	t.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	if isLoss {
		n.losses[kind]++
	}
	other := ""
	for question, want := range before {
		got := after[question]
		isOther := len(want) > 0 && !slices.Equal(want, got) // a plugin may not answer in time
		if strings.HasSuffix(question, " upstreams") {       // one of several may not have been drawn
			isOther = len(want) > 0 && len(got) == 0 || slices.ContainsFunc(got, func(to string) bool { return !slices.Contains(want, to) })
			if isOther && len(got) > 0 {
				t.Errorf("%s: %s: %v before, %v now\n%s", source, question, want, got, text)
			}
		}
		if isOther {
			other += fmt.Sprintf("%s: %v before, %v now\n", question, want, got)
		}
	}
	if other == "" {
		return
	}
	n.others[kind]++
	t.Logf("%s: kind %d, loss %t:\n%s", source, kind, isLoss, other)
	if !isLoss {
		t.Errorf("%s: convert names no loss:\n%s%s", source, other, text)
	}
}

// startCoreDNS runs CoreDNS at its own address. It leaves out lines that this CoreDNS refuses, which are of other versions, or of plugins
// that it does not have.
func (n *corpusNetwork) startCoreDNS(text string, port uint16) (*proctest.Process, error) {
	text = policyLine.ReplaceAllString(proxyLine.ReplaceAllString(text, "${1}forward "), "")
	lines := strings.Split(text, "\n")
	for {
		path := filepath.Join(n.dir, "Corefile")
		corefile := blockHead.ReplaceAllString(strings.Join(lines, "\n"), "$0\n bind "+oldServer+" 127.0.0.1")
		if err := os.WriteFile(path, []byte(corefile), 0o600); err != nil {
			return nil, err
		}
		p, err := n.launchCoreDNS(path, port)
		if err == nil {
			return p, nil
		}
		match := refused.FindStringSubmatch(err.Error())
		if match == nil {
			return nil, err
		}
		at, _ := strconv.Atoi(match[1])
		if at > 0 { // without the lines that were added
			at -= strings.Count(strings.Join(strings.Split(corefile, "\n")[:at], "\n"), " bind "+oldServer) + 1
		} else {
			at = slices.IndexFunc(lines, func(line string) bool { return strings.HasPrefix(strings.TrimSpace(line)+" ", match[2]+" ") })
		}
		if at < 0 || at >= len(lines) || lines[at] == "" {
			return nil, err
		}
		if strings.HasSuffix(lines[at], "{") {
			indent := lines[at][:len(lines[at])-len(strings.TrimLeft(lines[at], " "))]
			clear(lines[at : at+slices.Index(lines[at:], indent+"}")+1])
		}
		lines[at] = ""
	}
}

// launchCoreDNS starts CoreDNS, and returns it once it answers.
func (n *corpusNetwork) launchCoreDNS(path string, port uint16) (*proctest.Process, error) {
	cmd := n.Upstream.Command(context.Background(), n.cluster.Programs.CoreDNS, "-conf", path)
	cmd.Env = n.env
	p, err := proctest.Launch("coredns", cmd)
	if err == nil {
		if _, err = n.ask(p, fmt.Sprintf("%s:%d", oldServer, port), nil); err != nil {
			p.Kill()
		}
	}
	return p, err
}

// converted prepares an agent with what convert makes of a Corefile, whose CoreDNS stays or is replaced.
func (n *corpusNetwork) converted(t *testing.T, text string, isReplaced bool) (agent *exec.Cmd, port uint16, isLoss bool) {
	t.Helper()
	corefile := proctest.WriteFile(t, filepath.Join(n.dir, "Corefile"), text)
	convert := func(flag ...string) config.Config {
		out, err := exec.Command(nodeCache, append([]string{"convert", "--faithful", corefile}, flag...)...).Output()
		if e, ok := errors.AsType[*exec.ExitError](err); ok && e.ExitCode() == 4 {
			isLoss = true
		} else if err != nil {
			t.Errorf("convert: %v", err)
		}
		c, err := config.Parse(out, config.Agent)
		if err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		path := proctest.WriteFile(t, filepath.Join(n.dir, fmt.Sprintf("config%t.yaml", isReplaced)), string(out))
		agent = exec.Command(nodeCache, "agent", "--config", path)
		return c
	}
	port = convert("--replace").Listen.Port
	if !isReplaced {
		isLoss = false
		convert("--old-server", fmt.Sprintf("%s:%d", oldServer, port))
	}
	return agent, port, isLoss
}

// ask asks a running server once it answers. It returns the answers by question, and the upstreams of a zone as those of "ZONE upstreams".
func (n *corpusNetwork) ask(p *proctest.Process, server string, names []string) (map[string][]string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	conn, err := n.Node.Dial(ctx, "udp", server)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	err = p.Await(ctx, proctest.Tick, func(ctx context.Context) error {
		session, err := n.Node.Dial(ctx, "tcp", server)
		if err != nil {
			return err
		}
		return session.Close()
	})
	if err != nil {
		return nil, err
	}
	found := map[string][]string{}
	for _, name := range names {
		types := []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeMX}
		if strings.HasSuffix(name, ".arpa.") {
			types = []uint16{dns.TypePTR}
		}
		for _, rrtype := range types {
			question := name + " " + dns.TypeToString[rrtype]
			if found[question], err = answersTo(conn, name, rrtype); err != nil {
				return nil, fmt.Errorf("%s: %s: %w\n%s", p.Name, question, err, p.Tail(10))
			}
		}
		if strings.HasPrefix(name, "web.") {
			continue
		}
		if found[name+" upstreams"], err = upstreamsOf(conn, name); err != nil {
			return nil, fmt.Errorf("%s: %s: %w\n%s", p.Name, name, err, p.Tail(10))
		}
	}
	return found, nil
}

// answersTo returns the code and the sorted answers to a question, without TTLs. It returns nothing for a server that does not answer in time,
// and "failed" for each code of failure.
func answersTo(conn net.Conn, name string, rrtype uint16) (list []string, err error) {
	client := dns.Client{Timeout: 10 * time.Second}
	r, _, err := client.ExchangeWithConn(new(dns.Msg).SetQuestion(name, rrtype), &dns.Conn{Conn: conn})
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, nil
	case err != nil:
		return nil, err
	case r.Rcode != dns.RcodeSuccess && r.Rcode != dns.RcodeNameError:
		return []string{"failed"}, nil
	}
	for _, rr := range r.Answer {
		rr.Header().Ttl = 0
		rr.Header().Name = strings.ToLower(rr.Header().Name)
		list = append(list, strings.ReplaceAll(rr.String(), "\t", " "))
	}
	slices.Sort(list)
	return append(slices.Compact(list), dns.RcodeToString[r.Rcode]), nil
}

// upstreamsOf asks for so many names in a zone that each of several upstreams is asked, even if each time one is drawn. A server that
// answers none in time asks no upstream.
func upstreamsOf(conn net.Conn, zone string) (list []string, err error) {
	client := dns.Client{Timeout: 10 * time.Second}
	for i := 0; i < 2 || i < 64 && len(list) > 0; i++ {
		q := new(dns.Msg).SetQuestion(fmt.Sprintf("probe-%d.%s", i, strings.TrimPrefix(zone, ".")), dns.TypeTXT)
		r, _, err := client.ExchangeWithConn(q, &dns.Conn{Conn: conn})
		if errors.Is(err, os.ErrDeadlineExceeded) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, rr := range r.Answer {
			if txt, ok := rr.(*dns.TXT); ok && !slices.Contains(list, txt.Txt[0]) {
				list = append(list, txt.Txt[0])
			}
		}
	}
	return list, nil
}

// questionsIn returns names that a Corefile may say something of: those of its words, the names of its addresses, and names of the cluster.
func questionsIn(text string) []string {
	names := []string{".", "kubernetes.default.svc.cluster.local.", "nothing.default.svc.cluster.local.", "10-0-0-1.default.pod.cluster.local."}
	for _, word := range strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(" \n\t{},\"", r) }) {
		word, _, _ = strings.Cut(strings.TrimPrefix(word, "*."), ":")
		if p, err := netip.ParsePrefix(word); err == nil {
			names = append(names, config.ReverseZones(p.Masked())...)
			continue
		}
		if a, err := netip.ParseAddr(word); err == nil {
			name, _ := dns.ReverseAddr(a.String())
			names = append(names, name)
			continue
		}
		plain := strings.NewReplacer(`\.`, ".", "(.*).", "", "^", "", "$", "").Replace(word) // also of an expression
		if zone, err := config.ParseZone(plain); err == nil && strings.Contains(plain, ".") {
			names = append(names, zone)
			if zone != "." && len(zone) < 200 {
				names = append(names, "web."+zone, "web.shop."+zone)
			}
		}
	}
	slices.Sort(names)
	isApex := func(name string) bool { return name == "in-addr.arpa." || name == "ip6.arpa." } // no client asks for them, and they are forwarded here
	return slices.DeleteFunc(slices.Compact(names), isApex)
}
