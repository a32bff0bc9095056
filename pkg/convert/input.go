// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	yaml "go.yaml.in/yaml/v3"

	"github.com/nodecache/node-cache/pkg/config"
)

// Input is a file to convert. The texts in a YAML file become inputs as well.
type Input struct {
	Name string // as notes name it
	Text []byte

	before     int   // lines before the text in its file
	unknownKey place // place of the text's key in a ConfigMap, if the key is unknown; zero: known
}

// maxInput bounds one input, in bytes. A ConfigMap is at most that large.
const maxInput = 1 << 20

// Options say which defaults and which old server stay, and which files are given.
type Options struct {
	Faithful bool // what a Corefile does not set gets CoreDNS's defaults
	Complete bool // the inputs are all files to import: a pattern with * may match none
	Replace  bool // the old server goes: nothing can be left to it

	// The old server, where it stays. Without an address it is the Service, by default kube-system/kube-dns.
	OldServer netip.AddrPort
	Service   config.ServiceName
}

// Files converts all inputs to one configuration. An input is a Corefile, or YAML: ConfigMaps with a Corefile, with files
// that one imports, or with the keys of kube-dns; values of the chart coredns, also in a HelmRelease of Flux or a
// HelmChartConfig of RKE2; configurationValues of EKS. It fails if an input is none of these.
func Files(inputs []Input, o Options) (*Result, error) {
	c := newConverter(o)
	for _, in := range inputs {
		if err := add(c, in); err != nil {
			return nil, fmt.Errorf("reading %s: %w", in.Name, err)
		}
	}
	if len(c.corefiles)+len(c.charts) == 0 && c.kubeDNSKeys == nil {
		what := "there is nothing to convert: neither a Corefile nor the ConfigMap of one, or of kube-dns"
		if names := sortedNames(c.files); len(names) > 0 {
			isPart := func(name string) bool { return c.files[name].unknownKey == (place{}) }
			what += ": give the Corefile that imports " + names[max(0, slices.IndexFunc(names, isPart))] +
				" beside it: kubectl -n kube-system get configmap coredns coredns-custom -o yaml has both"
		}
		return nil, errors.New(what)
	}
	return c.convert()
}

// sortedNames returns the sorted names of files.
func sortedNames(files map[string]Input) []string { return slices.Sorted(maps.Keys(files)) }

// add adds one input.
func add(c *converter, in Input) error {
	switch {
	case len(in.Text) > maxInput:
		return errors.New("larger than 1 MiB")
	case len(bytes.TrimSpace(in.Text)) == 0:
		return errors.New("empty")
	}
	objects, err := objects(in.Text)
	if err != nil {
		return err
	}
	if objects == nil {
		c.corefiles = append(c.corefiles, in)
		return nil
	}
	found := false
	for _, o := range objects {
		known, err := addObject(c, in.Name, o)
		if err != nil {
			return err
		}
		found = found || known
	}
	if !found {
		return errors.New("no ConfigMap in it has a Corefile or the keys of kube-dns")
	}
	return nil
}

// Hints with the command that prints a Corefile.
const (
	getNodeLocal = "give the ConfigMap: kubectl -n kube-system get configmap node-local-dns kube-dns -o yaml --ignore-not-found"
	getOpenShift = "give the ConfigMap: oc -n openshift-dns get configmap dns-default -o yaml"
	getAKS       = "give the Corefile of a node: kubectl debug node/NODE -q -it --image=busybox -- cat /host/opt/azure/containers/localdns/localdns.corefile"
	getDnsmasq   = "give the ConfigMap: kubectl -n kube-system get configmap kube-dns -o yaml, and write a route for each --server=/ZONE/ADDRESS of the Deployment"
)

// addObject adds what is in a YAML mapping: an object of Kubernetes, or the values of a chart or an add-on. It reports
// whether that can be converted, and fails for what has its Corefile elsewhere.
func addObject(c *converter, file string, o *yaml.Node) (known bool, err error) {
	kind, data := text(o, "kind"), value(o, "data")
	switch {
	case kind == "HelmRelease":
		o = value(value(o, "spec"), "values")
	case kind == "HelmChartConfig", kind == "HelmChart":
		var values yaml.Node
		content := value(value(o, "spec"), "valuesContent")
		if content == nil {
			return false, nil
		}
		if err := yaml.Unmarshal([]byte(content.Value), &values); err != nil || len(values.Content) == 0 {
			return false, err
		}
		o = values.Content[0]
		moveLines(o, content.Line)
	case kind == "DNS" && strings.HasPrefix(text(o, "apiVersion"), "operator.openshift.io/"):
		return false, errors.New("the operator makes the Corefile of it: " + getOpenShift)
	case value(o, "vnetDNSOverrides") != nil, value(o, "kubeDNSOverrides") != nil:
		return false, errors.New("AKS makes the Corefile of it: " + getAKS)
	case strings.Contains(kind, "Deployment") && hasDnsmasq(o):
		return false, errors.New("the flags of dnsmasq are not read: " + getDnsmasq)
	case data != nil && data.Kind == yaml.MappingNode && (kind == "ConfigMap" || kind == ""):
		return addConfigMap(c, file, data)
	}
	for _, chart := range []*yaml.Node{o, value(o, "coredns"), value(o, "rke2-coredns")} {
		if corefile := value(chart, "corefile"); corefile != nil {
			c.corefiles = append(c.corefiles, inputAt(file, "corefile", corefile))
			return true, nil
		}
		if len(items(value(chart, "servers"))) > 0 {
			c.charts = append(c.charts, chartValues{file, chart})
			return true, nil
		}
	}
	if nodeLocal := value(o, "config"); value(nodeLocal, "localDns") != nil || value(nodeLocal, "localDnsIp") != nil {
		return false, errors.New("the chart makes the Corefile of it: " + getNodeLocal)
	}
	return false, nil
}

// moveLines adds an offset to the line numbers of a node that was parsed from a text within a file.
func moveLines(n *yaml.Node, by int) {
	n.Line += by
	for _, child := range n.Content {
		moveLines(child, by)
	}
}

// hasDnsmasq reports whether an object has a flag of dnsmasq for servers or addresses.
func hasDnsmasq(n *yaml.Node) bool {
	return strings.HasPrefix(n.Value, "--server=/") || strings.HasPrefix(n.Value, "--address=/") || slices.ContainsFunc(n.Content, hasDnsmasq)
}

// inputAt returns a text in a YAML file.
func inputAt(file, key string, n *yaml.Node) Input {
	if n.Style&yaml.LiteralStyle != 0 { // a literal block, whose lines are lines of the file
		return Input{Name: file, Text: []byte(n.Value), before: n.Line}
	}
	return Input{Name: file + " " + key, Text: []byte(n.Value)}
}

// objects returns the mappings in a YAML text, including those of a List. For a Corefile it returns nil and no error.
func objects(text []byte) (list []*yaml.Node, err error) {
	for decoder := yaml.NewDecoder(bytes.NewReader(text)); ; {
		var doc yaml.Node
		err := decoder.Decode(&doc)
		switch {
		case errors.Is(err, io.EOF) && len(list) > 0:
			return list, nil
		case errors.Is(err, io.EOF):
			err = errors.New("no object is in it")
			fallthrough
		case err != nil:
			return nil, notCorefile(text, err)
		case len(doc.Content) == 0 || doc.Content[0].Kind != yaml.MappingNode:
			continue
		}
		if objects := items(value(doc.Content[0], "items")); len(objects) > 0 {
			list = append(list, objects...)
		} else {
			list = append(list, doc.Content[0])
		}
	}
}

// notCorefile returns the error for a text without objects that is no Corefile: invalid YAML, or not a text.
func notCorefile(text []byte, problem error) error {
	if err := unfilledError(text, 0); err != nil {
		return err
	}
	meant := regexp.MustCompile(`(?m)\A\s*\{|^(?:apiVersion|kind|metadata|data|items|servers|spec):(?:\s|$)`)
	isControl := func(c rune) bool { return c < ' ' && !strings.ContainsRune("\t\n\f\r", c) }
	switch {
	case bytes.ContainsFunc(text, isControl):
		return errors.New("not UTF-8 text")
	case meant.Match(text):
		return fmt.Errorf("it is neither a Corefile nor YAML of a ConfigMap as kubectl get -o yaml writes it: %w", problem)
	}
	return nil
}

// value returns the value of a key of a mapping; nil: there is none.
func value(mapping *yaml.Node, key string) *yaml.Node {
	if mapping != nil && mapping.Kind == yaml.MappingNode {
		for i := 0; i+1 < len(mapping.Content); i += 2 {
			if mapping.Content[i].Value == key {
				return mapping.Content[i+1]
			}
		}
	}
	return nil
}

// text returns the text of a key of a mapping; empty: there is none.
func text(mapping *yaml.Node, key string) string {
	if v := value(mapping, key); v != nil {
		return v.Value
	}
	return ""
}

// addConfigMap adds the keys of a ConfigMap, and reports whether it may be about DNS.
func addConfigMap(c *converter, file string, data *yaml.Node) (known bool, err error) {
	unknown := map[string]Input{}
	for i := 0; i+1 < len(data.Content); i += 2 {
		key, in := data.Content[i].Value, inputAt(file, data.Content[i].Value, data.Content[i+1])
		isKnown, again := addKey(c, key, in)
		switch {
		case again:
			return true, fmt.Errorf("the key %s is in two ConfigMaps", key)
		case isKnown:
			known = true
		case key != "Corefile-backup": // Corefile-backup is kubeadm's backup, and is ignored
			in.unknownKey = place{file, data.Content[i].Line}
			unknown[key] = in
		}
	}
	for key, in := range unknown { // a Corefile may import the values of unknown keys, or read them as files
		if _, again := c.files[key]; !again {
			c.files[key] = in
			c.aside[key] = !known // no key of this ConfigMap is about DNS
		}
	}
	c.Complete = c.Complete || !known && len(unknown) > 0 // a ConfigMap without a key about DNS holds all files to import
	return known || len(unknown) > 0, nil
}

// addKey adds the value of a known key. It reports whether the key is known, and whether another ConfigMap had it.
func addKey(c *converter, key string, in Input) (known, again bool) {
	switch {
	case key == "Corefile":
		c.corefiles = append(c.corefiles, in)
	case strings.HasSuffix(key, ".override"), strings.HasSuffix(key, ".server"), strings.HasSuffix(key, ".include"):
		_, again = c.files[key]
		c.files[key], c.Complete = in, true
	case key == stubDomains, key == upstreamNameservers, key == federations:
		_, again = c.kubeDNSKeys[key]
		if c.kubeDNSKeys == nil {
			c.kubeDNSKeys = map[string]string{}
		}
		c.kubeDNSKeys[key] = string(in.Text)
	default:
		return false, false
	}
	return true, again
}

// chartValues are values of the chart coredns.
type chartValues struct {
	file   string
	values *yaml.Node
}

// servers returns the server blocks that the chart writes into its Corefile.
func (v chartValues) servers(p *parser) (list []*server, err error) {
	if more := value(v.values, "extraConfig"); more != nil && len(more.Content) > 0 {
		p.note(place{v.file, more.Line}, "extraConfig", "it is not read", "give the ConfigMap of the chart: kubectl get configmap -o yaml")
	}
	for _, block := range items(value(v.values, "servers")) {
		s := &server{at: place{v.file, block.Line}}
		port := cmp.Or(text(block, "port"), "53")
		for _, zone := range items(value(block, "zones")) {
			s.keys = append(s.keys, text(zone, "scheme")+cmp.Or(text(zone, "zone"), ".")+":"+port)
		}
		if len(s.keys) == 0 {
			s.keys = []string{".:" + port}
		}
		for _, plugin := range items(value(block, "plugins")) {
			statements, err := v.plugin(p, plugin)
			if err != nil {
				return nil, err
			}
			s.plugins = append(s.plugins, statements...)
		}
		list = append(list, s)
	}
	return list, nil
}

// plugin returns the line that the chart writes for a plugin.
func (v chartValues) plugin(p *parser, n *yaml.Node) ([]statement, error) {
	words := text(n, "name") + " " + strings.ReplaceAll(text(n, "parameters"), "\n", " ")
	list, err := p.lines(Input{Name: v.file, Text: []byte(words), before: n.Line - 1})
	if body := value(n, "configBlock"); err == nil && body != nil && len(list) > 0 {
		list[len(list)-1].body, err = p.lines(inputAt(v.file, "configBlock", body))
	}
	return list, err
}

// items returns the items of a list; nil if n is not a list.
func items(n *yaml.Node) []*yaml.Node {
	if n == nil || n.Kind != yaml.SequenceNode {
		return nil
	}
	return n.Content
}
