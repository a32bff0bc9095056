// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"cmp"
	"context"
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

// oldServer is the address of --old-server.
const oldServer = "203.0.113.1:53"

// TestCorpus runs CoreDNS with each of 113 public Corefiles, which have other names and addresses here, and node-cache with what convert
// makes of it. Each upstream answers with its address, which shows where a query went. node-cache must ask none that CoreDNS does not ask.
// If it asks none where CoreDNS asks one, the exit code of convert says that something is lost. With --old-server it asks that one then.
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
	proctest.Figure(t, "%d zones of %d Corefiles: asked %d times elsewhere, %d get SERVFAIL", c.zones, len(files)-c.unread, c.elsewhere, c.lost)
	if want := 7; c.unread != want {
		t.Errorf("CoreDNS could not run %d Corefiles, want %d", c.unread, want)
	}
}

// A corpus is what the networks share.
type corpus struct {
	cluster   *kubetest.Cluster
	authority *upstreamtest.Authority

	mu                             sync.Mutex // guards the following fields
	unread, zones, elsewhere, lost int
}

// A corpusNetwork is a network with all upstreams of the corpus. Servers run on its node, one after the other.
type corpusNetwork struct {
	*nodetest.Network
	*corpus
	dir        string
	env        []string
	kubeconfig string // with an address of the API server that is on the node
}

func (c *corpus) newNetwork(t *testing.T, text string) *corpusNetwork {
	t.Helper()
	n := &corpusNetwork{Network: nodetest.Start(t, nodetest.Options{Pods: 1}), corpus: c, dir: t.TempDir()}
	roots := filepath.Join(n.dir, "roots.pem")
	c.authority.Trust(t, roots)
	n.env = append(os.Environ(), "SSL_CERT_FILE="+roots)
	var api *kubetest.Proxy
	err := n.Node.Do(func() (err error) {
		api, err = kubetest.NewProxy(t.Context(), c.cluster.Address())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(api.Close)
	if n.kubeconfig, err = c.cluster.KubeconfigAt(kubetest.Admin, api.Addr()); err != nil {
		t.Fatal(err)
	}
	resolvConf, err := dns.ClientConfigFromFile("/etc/resolv.conf")
	if err != nil {
		t.Fatal(err)
	}
	serving := map[netip.AddrPort]bool{}
	for _, word := range append(resolvConf.Servers, strings.Fields(n.onNode(text)+" "+oldServer)...) {
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

// serve runs an upstream that answers TXT queries with its address.
func (n *corpusNetwork) serve(t *testing.T, target *config.Target) error {
	t.Helper()
	handler := dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		r := new(dns.Msg).SetReply(q)
		if q.Question[0].Qtype == dns.TypeTXT {
			r.Answer = []dns.RR{&dns.TXT{Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeTXT, Class: dns.ClassINET, Ttl: 60}, Txt: []string{target.Addr.String()}}}
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
	refused    = regexp.MustCompile(`Corefile:(\d+) - |no action found for directive '(\w+)'`)
)

// askCoreDNS is ask for CoreDNS. It leaves out lines that this CoreDNS refuses, which are of other versions, or of plugins that it does not
// have.
func (n *corpusNetwork) askCoreDNS(text string, port uint16, zones []string) (map[string][]string, error) {
	text = policyLine.ReplaceAllString(proxyLine.ReplaceAllString(text, "${1}forward "), "")
	lines := strings.Split(text, "\n")
	for {
		path := filepath.Join(n.dir, "Corefile")
		if err := os.WriteFile(path, []byte(strings.Join(lines, "\n")), 0o600); err != nil {
			return nil, err
		}
		found, err := n.ask(exec.Command(n.cluster.Programs.CoreDNS, "-conf", path), port, zones)
		if err == nil {
			return found, nil
		}
		match := refused.FindStringSubmatch(err.Error())
		if match == nil {
			return nil, err
		}
		at, _ := strconv.Atoi(match[1])
		if at--; match[2] != "" {
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

// compare runs CoreDNS with a file, then node-cache without and with an old server, and asks each.
func (n *corpusNetwork) compare(t *testing.T, file string) {
	t.Helper()
	source, text, _ := strings.Cut(file, "\n")
	text = n.onNode(text)
	zones := zonesIn(text)
	agent, port, isLoss := n.converted(t, text)
	withOld, _, _ := n.converted(t, text, "--faithful", "--old-server", oldServer)
	before, err := n.askCoreDNS(text, port, zones)
	if err != nil {
		t.Logf("%s: %v", source, err)
		n.mu.Lock()
		defer n.mu.Unlock()
		n.unread++
		return
	}
	after, err := n.ask(agent, port, zones)
	old, errOld := n.ask(withOld, port, zones)
	if err != nil || errOld != nil {
		t.Errorf("%s: %v", source, errors.Join(err, errOld))
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, zone := range zones {
		isElsewhere := func(to string) bool { return !slices.Contains(before[zone], to) }
		switch {
		case slices.ContainsFunc(after[zone], isElsewhere):
			n.elsewhere++
			t.Errorf("%s: %s: %v before, %v now\n%s", source, zone, before[zone], after[zone], text)
		case len(after[zone]) == 0 && len(before[zone]) > 0:
			n.lost++
			if !isLoss {
				t.Errorf("%s: %s: %v before, none now, and convert names no loss\n%s", source, zone, before[zone], text)
			}
		}
		if slices.ContainsFunc(old[zone], func(to string) bool { return isElsewhere(to) && to != oldServer }) || len(old[zone]) == 0 && len(before[zone]) > 0 {
			t.Errorf("%s: %s: %v before, %v with the old server\n%s", source, zone, before[zone], old[zone], text)
		}
	}
	n.zones += len(zones)
}

// converted prepares node-cache with what convert makes of a Corefile.
func (n *corpusNetwork) converted(t *testing.T, text string, flags ...string) (agent *exec.Cmd, port uint16, isLoss bool) {
	t.Helper()
	corefile := proctest.WriteFile(t, filepath.Join(n.dir, "Corefile"), text)
	out, err := exec.Command(nodeCache, append([]string{"convert", corefile}, flags...)...).Output()
	if e, ok := errors.AsType[*exec.ExitError](err); ok && e.ExitCode() == 4 {
		isLoss = true
	} else if err != nil {
		t.Errorf("convert: %v", err)
	}
	c, err := config.Parse(out, config.Agent)
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	path := proctest.WriteFile(t, filepath.Join(n.dir, fmt.Sprintf("config%d.yaml", len(flags))), string(out))
	return exec.Command(nodeCache, "agent", "--config", path), c.Listen.Port, isLoss
}

// ask runs a server and asks it for names in each zone. It returns the upstreams that the server asked.
func (n *corpusNetwork) ask(cmd *exec.Cmd, port uint16, zones []string) (map[string][]string, error) {
	inside := n.Node.Command(context.Background(), cmd.Args[0], cmd.Args[1:]...)
	inside.Env = n.env
	p, err := proctest.Launch(filepath.Base(cmd.Args[0]), inside)
	if err != nil {
		return nil, err
	}
	defer p.Kill()
	server := fmt.Sprintf("127.0.0.1:%d", port)
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	conn, err := n.Node.Dial(ctx, "udp", server)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	err = p.Await(ctx, proctest.Tick, func(context.Context) error {
		_, _, err := new(dns.Client).ExchangeWithConn(new(dns.Msg).SetQuestion(".", dns.TypeNS), &dns.Conn{Conn: conn})
		if errors.Is(err, os.ErrDeadlineExceeded) { // the plugin erratic drops queries
			return nil
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	found := map[string][]string{}
	for _, zone := range zones {
		if found[zone], err = upstreamsOf(conn, zone); err != nil {
			return nil, fmt.Errorf("%s: %s: %w\n%s", p.Name, zone, err, p.Tail(10))
		}
	}
	return found, nil
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

// zonesIn returns the words of a Corefile that may be zones.
func zonesIn(text string) []string {
	zones := []string{"."}
	for _, word := range strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(" \n\t{},\"", r) }) {
		word, _, _ = strings.Cut(word, ":")
		if p, err := netip.ParsePrefix(word); err == nil {
			zones = append(zones, config.ReverseZones(p.Masked())...)
			continue
		}
		zone, err := config.ParseZone(word)
		if _, notAddr := netip.ParseAddr(word); err == nil && notAddr != nil && strings.Contains(word, ".") {
			zones = append(zones, zone)
		}
	}
	slices.Sort(zones)
	return slices.Compact(zones)
}
