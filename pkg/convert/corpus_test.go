// SPDX-License-Identifier: Apache-2.0

package convert_test

import (
	"cmp"
	"maps"
	"net"
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/coredns/caddy/caddyfile"
	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/convert"
)

// Where a query goes, if not to upstreams.
const nowhere, cluster, denied, unread = "nowhere", "cluster", "denied", "unread"

// TestCorpus converts the directives of 113 public Corefiles, which have other names and addresses here. It asks a model of CoreDNS and the
// configuration where the queries for each zone go. A difference must be a loss that a note names; with the old server there is none.
func TestCorpus(t *testing.T) {
	t.Parallel()
	old := netip.MustParseAddrPort("203.0.113.1:53")
	count := map[string]int{}
	for file := range strings.SplitSeq(string(read(t, filepath.Join("testdata", "corpus.txt")))[3:], "\n== ") {
		source, text, _ := strings.Cut(file, "\n")
		input := []convert.Input{{Name: "Corefile", Text: []byte(text)}}
		r, err := convert.Files(input, convert.Options{})
		must(t, err)
		withOld, err := convert.Files(input, convert.Options{Faithful: true, OldServer: old})
		must(t, err)
		count["files"]++
		if r.Lost() {
			count["lossy"]++
		}
		m := newModel(t, text)
		for _, zone := range m.zones {
			name := "probe-9." + strings.TrimPrefix(zone, ".")
			before, plugin := m.destination(name)
			after := destination(&r.Config, name)
			isNamed := slices.ContainsFunc(r.Notes, func(n convert.Note) bool { return !n.Kept && strings.Contains(n.What+n.Why, plugin) })
			switch {
			case before == after:
				count["same"]++
			case !isNamed:
				t.Errorf("%s: %s: %s before, %s now, and no loss with %q in %v\n%s", source, zone, before, after, plugin, r.Notes, text)
			case after == nowhere:
				count["SERVFAIL"]++
			default:
				t.Errorf("%s: %s: %s before, %s now\n%s", source, zone, before, after, text)
			}
			if after := destination(&withOld.Config, name); after != before && after != old.String() {
				t.Errorf("%s: %s: %s before, %s with the old server\n%s", source, zone, before, after, text)
			}
		}
	}
	same(t, "counts", map[string]int{"files": 113, "lossy": 66, "same": 356, "SERVFAIL": 91}, count)
}

// destination is where a configuration sends a query of type TXT.
func destination(c *config.Config, name string) string {
	for _, r := range c.Rewrite {
		if head, found := strings.CutSuffix(name, r.Suffix+"."); found && r.Suffix != "" {
			name = head + r.To + "."
			break
		}
	}
	for _, t := range c.Templates {
		if isIn(name, t.Zone) && (len(t.Types) == 0 || slices.Contains(t.Types, dns.TypeTXT)) && matches(name, t.Match) {
			return map[bool]string{true: nowhere, false: denied}[t.Rcode == dns.RcodeServerFailure]
		}
	}
	best, to := config.Route{}, []string(nil)
	for _, r := range c.Forward {
		if isIn(name, r.Zone) && len(r.Zone) > len(best.Zone) {
			best = r
		}
	}
	isReverse := isIn(name, "in-addr.arpa.") || isIn(name, "ip6.arpa.")
	if c.Cluster.Resolver != config.ResolverNone && (isIn(name, c.ClusterDomain) && len(best.Zone) < len(c.ClusterDomain) || isReverse && best.Zone == ".") {
		for _, a := range c.Cluster.Central.Addresses {
			to = append(to, a.String())
		}
		return cmp.Or(strings.Join(to, " "), cluster)
	}
	for _, t := range best.To {
		to = append(to, target(t))
	}
	return strings.Join(to, " ")
}

func target(t config.Target) string {
	switch t.Kind {
	case config.ResolvConf:
		return t.Path
	case config.None:
		return nowhere
	case config.Plain, config.TCP, config.TLS, config.HTTPS:
	}
	return t.Addr.String()
}

func isIn(name, zone string) bool { return zone == "." || strings.HasSuffix("."+name, "."+zone) }

func matches(name string, expressions []string) bool {
	return len(expressions) == 0 || slices.ContainsFunc(expressions, func(m string) bool { return regexp.MustCompile(m).MatchString(name) })
}

// A model is what CoreDNS reads in a Corefile.
type model struct {
	blocks []block
	zones  []string // of keys and of arguments
}

type block struct {
	zones   []string
	port    string
	plugins map[string][]line
}

// A line is one of a plugin, with those in its braces.
type line struct {
	words   []string
	options [][]string
}

func (l *line) has(option string) bool { return len(l.all(option)) > 0 }

// all returns the option and its arguments, of all lines with it.
func (l *line) all(option string) (words []string) {
	for _, o := range l.options {
		if o[0] == option {
			words = append(words, o...)
		}
	}
	return words
}

func newModel(t *testing.T, text string) *model {
	t.Helper()
	text = strings.NewReplacer("__PILLAR__LOCAL__DNS__", "169.254.20.10", "__PILLAR__DNS__DOMAIN__", "cluster.local").Replace(text)
	parsed, err := caddyfile.Parse("Corefile", strings.NewReader(text), nil)
	must(t, err)
	m, ports := &model{zones: []string{"."}}, map[string]int{}
	for _, p := range parsed {
		b := block{plugins: map[string][]line{}}
		for _, key := range p.Keys {
			host, port := key, "53"
			if h, p, err := net.SplitHostPort(key); err == nil {
				host, port = h, p
			}
			if !strings.Contains(key, "://") {
				b.zones, b.port = append(b.zones, zonesOf(cmp.Or(host, "."))...), port
				ports[port]++
			}
		}
		for plugin, tokens := range p.Tokens {
			b.plugins[plugin] = lines(tokens)
			for _, l := range b.plugins[plugin] {
				words := slices.DeleteFunc(slices.Concat(l.words, l.all("except"), l.all("multicluster")), func(w string) bool { return !strings.Contains(w, ".") })
				m.zones = append(m.zones, within(b.zones, words)...)
			}
		}
		m.blocks, m.zones = append(m.blocks, b), append(m.zones, b.zones...)
	}
	most := slices.MaxFunc(m.blocks, func(a, b block) int { return ports[a.port] - ports[b.port] }).port
	m.blocks = slices.DeleteFunc(m.blocks, func(b block) bool { return b.port != most })
	slices.Sort(m.zones)
	m.zones = slices.Compact(m.zones)
	return m
}

// lines splits the tokens of a plugin.
func lines(tokens []caddyfile.Token) (list []line) {
	depth, at := 0, 0
	for _, t := range tokens {
		isNext := t.Line != at
		at = t.Line
		switch {
		case t.Text == "{" || t.Text == "}":
			depth += strings.Count(t.Text, "{") - strings.Count(t.Text, "}")
		case isNext && depth > 0:
			list[len(list)-1].options = append(list[len(list)-1].options, []string{t.Text})
		case isNext:
			list = append(list, line{words: []string{t.Text}})
		case depth > 0:
			options := list[len(list)-1].options
			options[len(options)-1] = append(options[len(options)-1], t.Text)
		default:
			list[len(list)-1].words = append(list[len(list)-1].words, t.Text)
		}
	}
	return list
}

// zonesOf returns the zones that a word means; none if it is an address or no name.
func zonesOf(word string) []string {
	if p, err := netip.ParsePrefix(word); err == nil {
		return config.ReverseZones(p.Masked())
	}
	zone, err := config.ParseZone(word)
	if _, notAddress := netip.ParseAddr(word); err != nil || notAddress == nil {
		return nil
	}
	return []string{zone}
}

// within returns the zones among words that lie in zones.
func within(zones, words []string) (list []string) {
	for _, w := range words {
		w, _, _ = strings.Cut(w, ":")
		for _, zone := range zonesOf(w) {
			if slices.ContainsFunc(zones, func(z string) bool { return isIn(zone, z) }) {
				list = append(list, zone)
			}
		}
	}
	return list
}

// understood are the plugins that answer no query, or do so as the model has it. Others answer for zones that only they know.
const understood = "acl alternate any autopath bind bufsize cache cancel chaos debug dns64 dnssec errors forward header health hosts import kubernetes loadbalance local log loop " +
	"metadata minimal multisocket nodecache nsid ocp_dnsnameresolver prometheus proxy ready reload rewrite sign startup template timeouts tls transfer tsig view whoami erratic"

// destination is where CoreDNS sends a query of type TXT, and the plugin that says so.
func (m *model) destination(name string) (to, plugin string) {
	var b *block
	longest := ""
	for i, other := range m.blocks {
		for _, zone := range other.zones {
			if isIn(name, zone) && len(zone) > len(longest) {
				b, longest = &m.blocks[i], zone
			}
		}
	}
	if b == nil {
		return nowhere, "names without a server"
	}
	in := func(words []string) bool {
		zones := within(b.zones, words)
		return slices.ContainsFunc(zones, func(zone string) bool { return isIn(name, zone) }) || len(zones) == 0
	}
	for _, l := range b.plugins["template"] {
		if typ := l.words[min(2, len(l.words)-1)]; (typ == "ANY" || typ == "TXT") && in(l.words[min(3, len(l.words)):]) {
			if matches(name, slices.DeleteFunc(l.all("match"), func(w string) bool { return w == "match" })) {
				return denied, "template"
			}
		}
	}
	for _, l := range b.plugins["hosts"] {
		isWild := slices.ContainsFunc(l.options, func(o []string) bool { return slices.Contains(o, "*."+strings.TrimSuffix(name[len("probe-9."):], ".")) })
		if isWild || !l.has("fallthrough") && in(l.words[min(2, len(l.words)):]) {
			return denied, "hosts"
		}
	}
	for _, l := range b.plugins["kubernetes"] {
		switch sets := l.all("multicluster"); {
		case len(sets) > 0 && in(sets):
			return unread, "multicluster"
		case in(l.words[1:]):
			return cluster, "kubernetes"
		}
	}
	for _, plugin := range slices.Sorted(maps.Keys(b.plugins)) {
		for _, l := range b.plugins[plugin] {
			words := l.words[1:]
			if plugin == "file" {
				words = words[min(1, len(words)):]
			}
			if !slices.Contains(strings.Fields(understood), plugin) && in(words) {
				return unread, plugin
			}
		}
	}
	for _, l := range slices.Concat(b.plugins["forward"], b.plugins["proxy"]) {
		if except := l.all("except"); !in(l.words[1:2]) || len(except) > 0 && in(except) {
			continue
		}
		var list []string
		for _, word := range l.words[2:] {
			host, _, _ := strings.Cut(strings.TrimPrefix(word, "dns://"), "%")
			switch t, err := config.ParseTarget(host); {
			case word == "__PILLAR__UPSTREAM__SERVERS__":
				list = append(list, "/etc/resolv.conf")
			case strings.HasPrefix(word, "__PILLAR__"):
				list = append(list, cluster)
			case err == nil:
				list = append(list, target(t))
			}
		}
		return cmp.Or(strings.Join(slices.Compact(list), " "), nowhere), l.words[0]
	}
	for _, plugin := range []string{"erratic", "whoami"} {
		if len(b.plugins[plugin]) > 0 {
			return unread, plugin
		}
	}
	return nowhere, "server"
}
