// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"

	yaml "go.yaml.in/yaml/v3"
)

// Input is one file to convert.
type Input struct {
	Name string // in notes
	Text []byte
}

// maxInput bounds one file. A ConfigMap holds at most that.
const maxInput = 1 << 20

// Files converts all inputs to one configuration. It detects their type: a Corefile, or YAML with ConfigMaps, alone, in a
// List, or among other objects. It converts a ConfigMap's Corefile, kube-dns keys, and keys that end in .override or
// .server, which a Corefile may import. It fails if an input is none of these.
func Files(inputs []Input) (*Result, error) {
	var f inputSet
	for _, in := range inputs {
		if len(in.Text) > maxInput {
			return nil, fmt.Errorf("reading %s: larger than 1 MiB", in.Name)
		}
		if err := f.add(in); err != nil {
			return nil, err
		}
	}
	if len(f.corefiles) == 0 && f.kubeDNS == nil {
		what := "there is nothing to convert: neither a Corefile nor the ConfigMap of one, or of kube-dns"
		if len(f.shared) > 0 {
			what += ": give the Corefile that imports " + f.imported() + " beside it: kubectl -n kube-system get configmap coredns coredns-custom -o yaml has both"
		}
		return nil, errors.New(what)
	}
	return convert(f.corefiles, f.shared, f.kubeDNS)
}

// imported returns the name of a file that a Corefile is meant to import.
func (f *inputSet) imported() string {
	all := sortedNames(f.shared)
	isPart := func(name string) bool { return f.shared[name].unknownKey == (place{}) }
	return all[max(0, slices.IndexFunc(all, isPart))]
}

// inputSet is the content of the inputs.
type inputSet struct {
	corefiles []document
	shared    map[string]document // files for imports, by name
	kubeDNS   map[string]string
}

// add adds one input.
func (f *inputSet) add(in Input) error {
	if strings.TrimSpace(string(in.Text)) == "" {
		return fmt.Errorf("reading %s: empty", in.Name)
	}
	objects, err := objects(in.Text)
	if err != nil {
		return fmt.Errorf("reading %s: %w", in.Name, err)
	}
	if objects == nil {
		f.corefiles = append(f.corefiles, document{name: in.Name, first: 1, text: string(in.Text)})
		return nil
	}
	found := false
	for _, o := range objects {
		if value(o, "kind") == nil || value(o, "kind").Value != "ConfigMap" {
			continue
		}
		took, err := f.configMap(in.Name, value(o, "data"))
		if err != nil {
			return err
		}
		found = found || took
	}
	if !found {
		return fmt.Errorf("reading %s: no ConfigMap in it has a Corefile or the keys of kube-dns", in.Name)
	}
	return nil
}

// objects returns the mappings in a YAML text, including those of a List. A Corefile has none, without an error.
func objects(text []byte) ([]*yaml.Node, error) {
	var list []*yaml.Node
	isYAML := false
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	for {
		var doc yaml.Node
		err := decoder.Decode(&doc)
		switch {
		case errors.Is(err, io.EOF) && len(list) > 0:
			return list, nil
		case errors.Is(err, io.EOF):
			return nil, notCorefile(text, isYAML, errors.New("no object with a kind is in it"))
		case err != nil:
			return nil, notCorefile(text, false, err)
		}
		if len(doc.Content) == 0 || doc.Content[0].Kind != yaml.MappingNode {
			continue
		}
		root := doc.Content[0]
		if value(root, "kind") == nil {
			isYAML = true
			continue
		}
		if items := value(root, "items"); items != nil && items.Kind == yaml.SequenceNode {
			list = append(list, items.Content...)
			continue
		}
		list = append(list, root)
	}
}

// notCorefile returns the error for a text without objects that is no Corefile: invalid YAML, or not a text.
func notCorefile(text []byte, isYAML bool, problem error) error {
	if err := unfilledError(string(text), 1); err != nil && problem != nil {
		return err
	}
	meant := regexp.MustCompile(`(?m)\A\s*\{|^(?:apiVersion|kind|metadata|data|items):(?:\s|$)`)
	isControl := func(c rune) bool { return c < ' ' && !strings.ContainsRune("\t\n\f\r", c) }
	switch {
	case bytes.ContainsFunc(text, isControl):
		return errors.New("not UTF-8 text")
	case isYAML, meant.Match(text):
		return fmt.Errorf("it is neither a Corefile nor YAML of a ConfigMap as kubectl get -o yaml writes it: %w", problem)
	}
	return nil
}

// value returns the value of a key of a mapping, or nil.
func value(mapping *yaml.Node, key string) *yaml.Node {
	if mapping == nil || mapping.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		if mapping.Content[i].Value == key {
			return mapping.Content[i+1]
		}
	}
	return nil
}

// configMap adds the keys of a ConfigMap, and reports whether it has known ones.
func (f *inputSet) configMap(file string, data *yaml.Node) (bool, error) {
	if data == nil || data.Kind != yaml.MappingNode {
		return false, nil
	}
	took, odd := false, map[string]document{}
	for i := 0; i+1 < len(data.Content); i += 2 {
		key, text := data.Content[i].Value, data.Content[i+1]
		switch {
		case key == "Corefile":
			took = true
			f.corefiles = append(f.corefiles, embeddedDocument(file, key, text))
		case strings.HasSuffix(key, ".override"), strings.HasSuffix(key, ".server"):
			took = true
			if err := setOnce(&f.shared, file, key, embeddedDocument(file, key, text)); err != nil {
				return false, err
			}
		case key == stubDomains, key == upstreamNameservers, key == federations:
			took = true
			if err := setOnce(&f.kubeDNS, file, key, text.Value); err != nil {
				return false, err
			}
		case key == "Corefile-backup": // a backup of kubeadm's upgrade
		default:
			d := embeddedDocument(file, key, text)
			d.unknownKey = place{file, data.Content[i].Line}
			odd[key] = d
		}
	}
	if took { // otherwise it is not about DNS
		f.addUnknown(odd)
	}
	return took, nil
}

// addUnknown adds other keys of a ConfigMap, which a Corefile may import or read. Known keys take precedence.
func (f *inputSet) addUnknown(odd map[string]document) {
	for key, d := range odd {
		if _, again := f.shared[key]; again {
			continue
		}
		if f.shared == nil {
			f.shared = map[string]document{}
		}
		f.shared[key] = d
	}
}

// setOnce sets a key that only one ConfigMap may have.
func setOnce[T any](all *map[string]T, file, key string, v T) error {
	if *all == nil {
		*all = map[string]T{}
	}
	if _, again := (*all)[key]; again {
		return fmt.Errorf("reading %s: the key %s is in two ConfigMaps", file, key)
	}
	(*all)[key] = v
	return nil
}

// embeddedDocument returns a text in a YAML value. In a literal block, its lines are lines of the file; in quotes they are not.
func embeddedDocument(file, key string, text *yaml.Node) document {
	if text.Style&yaml.LiteralStyle != 0 {
		return document{name: file, first: text.Line + 1, text: text.Value}
	}
	return document{name: file + " " + key, first: 1, text: text.Value}
}

// sortedNames returns the sorted names of the files for imports.
func sortedNames(shared map[string]document) []string { return slices.Sorted(maps.Keys(shared)) }
