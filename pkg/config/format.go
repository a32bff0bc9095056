// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"

	"go.yaml.in/yaml/v3"
)

// field is a key of a mapping, which a field of a struct has as its tags. All but yaml may be missing:
//
//	yaml      the key; a struct that is embedded without one has its keys among those around it
//	format    how a scalar, or each item of a list, is read: see formats; default: by its type
//	words     the words that it may be, the first for 0 or false, the second for 1 or true, and so on
//	min, max  the bounds of a number, of both or none, as in the file; max alone: of the items of a list
//	required  a hint for a key that is missing, or for an empty list
//	repeats   true: an item may be in the list again
//	inherits  the path of the key whose value is the default
//	off       the keys that turn a section off, for the hint of one that is `off` instead of a mapping
//	example   the value in the reference, for items of lists that are empty by default
type field struct {
	key      string
	index    []int // index of the struct's field, for reflect.Value.FieldByIndex
	tag      reflect.StructTag
	words    []string
	format   format
	min, max float64
}

// switchHint returns what to write for a section that is `on` or `off` instead of a mapping, empty for others.
func (f *field) switchHint(n *yaml.Node) string {
	off := f.tag.Get("off")
	switch on, isBool := boolOf(n); {
	case off == "" || !isBool:
		return ""
	case on:
		return "on is the default: the key may be left out"
	}
	return "write {" + off + "}"
}

// value returns the field of a struct.
func (f *field) value(of reflect.Value) reflect.Value { return of.FieldByIndex(f.index) }

// outOfBounds returns the problem of a number outside f's bounds, else nil. v is the struct's field, which still has the default or 0.
func (f *field) outOfBounds(got any, n *yaml.Node, v reflect.Value) *Problem {
	least, bounded := f.tag.Lookup("min")
	number := numberOf(reflect.ValueOf(got))
	switch {
	case !bounded || f.min <= number && number <= f.max:
		return nil
	case f.tag.Get("format") == "size" && isDigits(n.Value) && number > 0:
		return problem(fmt.Sprintf("not between %s and %s", least, f.tag.Get("max")), "a number without a unit is bytes")
	}
	p := problem(fmt.Sprintf("not between %s and %s", least, f.tag.Get("max")), "")
	if from := f.tag.Get("inherits"); from != "" {
		p.Hint = "the default is the value of " + from
	} else if standard := numberOf(v); standard != 0 && f.min <= standard && standard <= f.max {
		p.Hint = "the default is " + f.format.print(v)
	}
	return p
}

// numberOf returns a number of any type.
func numberOf(v reflect.Value) float64 {
	switch {
	case v.CanInt():
		return float64(v.Int())
	case v.CanUint():
		return float64(v.Uint())
	case v.CanFloat():
		return v.Float()
	}
	return 0
}

// fieldsOf returns the keys of a struct in their order.
func fieldsOf(t reflect.Type) []field {
	if known, found := knownFields.Load(t); found {
		return known.([]field)
	}
	var fields []field
	named := formats()
	for _, s := range reflect.VisibleFields(t) {
		key := s.Tag.Get("yaml")
		if key == "" || len(s.Index) > 1 && !isInline(t, s.Index) {
			continue
		}
		f := field{key: key, index: s.Index, tag: s.Tag}
		if words := s.Tag.Get("words"); words != "" {
			f.words = strings.Split(words, ",")
		}
		f.format = formatOf(&f, s.Type, named)
		if least, found := s.Tag.Lookup("min"); found {
			f.min = f.bound(least)
		}
		if most, found := s.Tag.Lookup("max"); found {
			f.max = f.bound(most)
		}
		fields = append(fields, f)
	}
	knownFields.Store(t, fields)
	return fields
}

// knownFields caches the results of fieldsOf by type.
var knownFields sync.Map //nolint:gochecknoglobals // it depends on the types alone

// isInline reports whether the field at index is in an embedded struct whose keys are keys of t.
func isInline(t reflect.Type, index []int) bool {
	return len(index) == 2 && t.Field(index[0]).Tag.Get("yaml") == ""
}

// bound returns the number that a tag min or max spells, in the form of the field's values.
func (f *field) bound(text string) float64 {
	n := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: text}
	if isDigits(text) {
		n.Tag = "!!int"
	}
	parse := f.format.parse
	if parse == nil { // the bound is on the number of items of a list
		parse = parseWhole
	}
	v, p := parse(n)
	if p != nil {
		panic(fmt.Sprintf("the bound %s of %s: %s", text, f.key, p.What))
	}
	return numberOf(reflect.ValueOf(v))
}

// maxShown bounds the part of a wrong value that a message repeats, in bytes.
const maxShown = 64

// format is how the scalars of a field are written. The zero value: the field is not a scalar.
type format struct {
	parse  func(*yaml.Node) (any, *Problem) // the problem has no path
	print  func(reflect.Value) string       // returns the value as YAML
	schema map[string]any                   // JSON Schema of the values
}

// formats are the formats that a tag can name.
func formats() map[string]format {
	return map[string]format{
		"zone":           stringFormat(parseZone),
		"domain":         stringFormat(parseDomain),
		"clusterSet":     stringFormat(parseClusterSet),
		"name":           stringFormat(parseProbeName),
		"host":           stringFormat(parseHost),
		"label":          stringFormat(parseProbeLabel),
		"link":           stringFormat(parseLink),
		"namespace":      stringFormat(parseNamespace),
		"topologyZone":   stringFormat(parseTopologyZone),
		"selector":       stringFormat(parseSelector),
		"path":           stringFormat(parseLocation),
		"file":           stringFormat(parseFileName),
		"socket":         stringFormat(parseSocket),
		"collector":      stringFormat(parseCollector),
		"etcdEndpoint":   stringFormat(parseEtcdEndpoint),
		"etcdPrefix":     stringFormat(parseEtcdPrefix),
		"serverName":     stringFormat(parseServerName),
		"text":           stringFormat(parseText),
		"part":           stringFormat(func(text string) (string, *Problem) { return text, nil }), // checkRewrites checks it
		"expression":     stringFormat(parseExpression),
		"record":         stringFormat(parseRecordText),
		"probeServer":    stringFormat(parseProbeServer),
		"type":           textFormat(parseType, spellType),
		"service":        textFormat(parseService, ServiceName.String),
		"federation":     textFormat(parseFederation, Federation.String),
		"queryLog":       queryLogFormat(),
		"target":         textFormat(parseRouteTarget, Target.String),
		"listenAddress":  textFormat(parseListenAddress, spellAddress),
		"serviceAddress": textFormat(parseServiceAddress, spellAddress),
		"bootstrap":      textFormat(parseBootstrap, spellAddress),
		"server":         textFormat(parseServer, spellAddress),
		"endpoint":       textFormat(parseOptionalEndpoint, spellAddress),
		"prefix":         textFormat(parsePrefix, spellAddress),
		"client":         textFormat(parseClient, spellAddress),
		"nat64":          textFormat(parseNAT64, spellAddress),
		"size":           {parse: parseSize, print: func(v reflect.Value) string { return formatSize(v.Int()) }, schema: jsonType("string", "integer")},
		"percent":        {parse: parsePercent, print: func(v reflect.Value) string { return formatPercent(v.Float()) }, schema: jsonType("string")},
		"ttl":            durationFormat(time.Second),
	}
}

// formatOf returns the format of a field, or of the items of its list.
func formatOf(f *field, t reflect.Type, named map[string]format) format {
	if name := f.tag.Get("format"); name != "" {
		return named[name]
	}
	switch {
	case f.words != nil && t.Kind() == reflect.Slice:
		return wordFormat(f.words, t.Elem())
	case f.words != nil:
		return wordFormat(f.words, t)
	case t == reflect.TypeFor[time.Duration]():
		return durationFormat(1)
	case t.Kind() == reflect.Bool:
		return format{parse: parseBoolean, print: func(v reflect.Value) string { return strconv.FormatBool(v.Bool()) }, schema: jsonType("boolean")}
	case t.Kind() == reflect.Int, t.Kind() == reflect.Uint16:
		return format{parse: parseWhole, print: func(v reflect.Value) string { return fmt.Sprint(v) }, schema: jsonType("integer")}
	}
	return format{}
}

func jsonType(names ...string) map[string]any {
	if len(names) == 1 {
		return map[string]any{"type": names[0]}
	}
	return map[string]any{"type": names}
}

// textFormat is the format of values that a file has as text.
func textFormat[T any](parse func(string) (T, *Problem), spell func(T) string) format {
	return format{
		parse: func(n *yaml.Node) (any, *Problem) {
			if n.Kind != yaml.ScalarNode || isNull(n) {
				return nil, notString(n)
			}
			return parse(n.Value)
		},
		print:  func(v reflect.Value) string { return quoteYAML(spell(v.Interface().(T))) }, //nolint:forcetypeassert // the tag says so
		schema: jsonType("string"),
	}
}

// stringFormat is the format of strings. It refuses numbers and booleans, which other programs may spell differently.
func stringFormat(parse func(string) (string, *Problem)) format {
	f := textFormat(parse, func(text string) string { return text })
	parseText := f.parse
	f.parse = func(n *yaml.Node) (any, *Problem) {
		if !isString(n) {
			return nil, notString(n)
		}
		return parseText(n)
	}
	return f
}

// notString returns what is wrong with a value that should be a string.
func notString(n *yaml.Node) *Problem {
	_, isBool := boolOf(n)
	switch {
	case isBool:
		return problem("not a string", "put it in quotes: YAML takes yes, no, on and off for booleans")
	case n.Kind == yaml.ScalarNode && !isNull(n):
		return problem("not a string", "put it in quotes")
	}
	return problem("not a string", "")
}

// wordFormat is the format of a field that is one of some words.
func wordFormat(words []string, t reflect.Type) format {
	return format{
		parse: func(n *yaml.Node) (any, *Problem) {
			word := wordOf(n, words)
			i := slices.Index(words, word)
			switch {
			case word == "ConfigMap":
				return nil, problem("not "+words[0], "check the text of its key node-cache.yaml; `node-cache convert` reads ConfigMaps of other servers")
			case i < 0 && len(words) == 1:
				return nil, problem("not "+words[0], "the key may be left out")
			case i < 0:
				return nil, problem("not "+strings.Replace(orList(words), "off or on", "on or off", 1), didYouMean(word, words))
			}
			switch {
			case t.Kind() == reflect.String:
				return word, nil
			case t.Kind() == reflect.Bool:
				return i == 1, nil
			case t == reflect.TypeFor[slog.Level]():
				return slog.Level(4 * (i - 1)), nil // debug, info, warn, error
			}
			return i, nil
		},
		print:  func(v reflect.Value) string { return printWord(words, v) },
		schema: map[string]any{"enum": jsonWords(words)},
	}
}

// wordOf returns the text of a word. YAML 1.1, which Helm reads, has booleans that are spelled on and off.
func wordOf(n *yaml.Node, words []string) string {
	on, isBool := boolOf(n)
	switch {
	case isBool && on && slices.Contains(words, "on"):
		return "on"
	case isBool && !on && slices.Contains(words, "off"):
		return "off"
	case n.Kind != yaml.ScalarNode || isNull(n) || isBool:
		return ""
	}
	return n.Value
}

func printWord(words []string, v reflect.Value) string {
	i := int(numberOf(v))
	isLevel := v.Type() == reflect.TypeFor[slog.Level]()
	switch {
	case v.Kind() == reflect.Bool && v.Bool():
		i = 1
	case v.Kind() == reflect.String:
		i = slices.Index(words, v.String())
	case isLevel && i%4 != 0:
		i = -1
	case isLevel:
		i = i/4 + 1
	}
	switch {
	case i < 0 || i >= len(words):
		return quoteYAML(fmt.Sprint(v))
	case words[i] == "on" || words[i] == "off": // quoted, because YAML 1.1 would read on and off as booleans
		return quoteYAML(words[i])
	}
	return words[i]
}

// jsonWords are words as JSON Schema has them. Helm takes on and off for booleans.
func jsonWords(words []string) []any {
	list := make([]any, 0, len(words))
	for _, word := range words {
		list = append(list, word)
		switch word {
		case "on":
			list = append(list, true)
		case "off":
			list = append(list, false)
		}
	}
	return list
}

// parseBoolean reads true or false.
func parseBoolean(n *yaml.Node) (any, *Problem) {
	v, isBool := boolOf(n)
	switch {
	case isBool:
		return v, nil
	case isString(n) && (n.Value == "true" || n.Value == "false"):
		return nil, problem("not true or false", "write "+n.Value+", without the quotes")
	}
	return nil, problem("not true or false", "")
}

// parseWhole reads a whole number. A number out of the range of int64 becomes the nearest int64.
func parseWhole(n *yaml.Node) (any, *Problem) {
	v, err := strconv.ParseInt(strings.ReplaceAll(n.Value, "_", ""), 0, 64)
	switch {
	case err != nil && !errors.Is(err, strconv.ErrRange), n.Kind != yaml.ScalarNode:
		return nil, problem("not a whole number", "")
	case isString(n):
		return nil, problem("not a whole number", "write "+n.Value+", without the quotes")
	}
	return v, nil
}

// durationFormat is the format of time spans that are multiples of a step.
func durationFormat(step time.Duration) format {
	return format{
		parse: func(n *yaml.Node) (any, *Problem) {
			hint := "write it like 500ms, 5s, 1m30s or 24h"
			naked := isDigits(strings.TrimLeft(n.Value, "+-")) // without a unit, which time.ParseDuration accepts for zero
			if naked && len(n.Value) < 10 {
				hint = "write it with a unit: " + n.Value + "s"
			}
			v, err := time.ParseDuration(n.Value)
			switch {
			case err != nil || naked:
				return nil, problem("not a duration", hint)
			case v%step != 0:
				return nil, problem("not whole seconds", "")
			}
			return v, nil
		},
		print:  func(v reflect.Value) string { return formatDuration(time.Duration(v.Int())) },
		schema: jsonType("string"),
	}
}

// formatDuration spells d without the zeros that Go puts after hours and minutes.
func formatDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// units yields the suffixes of a size, the larger binary ones first, and their bytes.
func units(yield func(suffix string, bytes int64) bool) {
	suffixes := [...]string{"Ti", "Gi", "Mi", "Ki", "T", "G", "M", "k", ""}
	for i, bytes := range []int64{1 << 40, 1 << 30, 1 << 20, 1 << 10, 1e12, 1e9, 1e6, 1e3, 1} {
		if !yield(suffixes[i], bytes) {
			return
		}
	}
}

// parseSize reads digits and a unit, such as 64Mi. A size too large for int64 becomes the largest int64.
func parseSize(n *yaml.Node) (any, *Problem) {
	digits := strings.TrimRight(n.Value, "KMGTkmgtiBb ")
	if !isDigits(digits) || len(digits) > 20 {
		return nil, problem("not a size", "write a whole number with Ki, Mi, Gi, k, M, G or no unit")
	}
	for suffix, bytes := range units {
		if n.Value[len(digits):] != suffix {
			continue
		}
		v, err := strconv.ParseInt(digits, 10, 64)
		if err != nil || v > math.MaxInt64/bytes {
			v, bytes = math.MaxInt64, 1
		}
		return v * bytes, nil
	}
	return nil, problem("not a size", "write "+digits+nearestUnit(n.Value[len(digits):]))
}

// nearestUnit returns the unit to suggest for an unknown unit: M for MB, and Mi for all other units that begin with m.
func nearestUnit(typed string) string {
	typed = strings.ToLower(strings.TrimSpace(typed))
	for suffix := range units {
		letter := strings.ToLower(strings.TrimSuffix(suffix, "i"))
		binary := strings.HasSuffix(suffix, "i")
		if letter != "" && strings.HasPrefix(typed, letter) && binary != (typed == letter+"b") {
			return suffix
		}
	}
	return ""
}

// formatSize spells a size with the largest binary unit that divides it.
func formatSize(bytes int64) string {
	for suffix, unit := range units {
		if strings.HasSuffix(suffix, "i") && bytes >= unit && bytes%unit == 0 {
			return strconv.FormatInt(bytes/unit, 10) + suffix
		}
	}
	return strconv.FormatInt(bytes, 10)
}

// parsePercent reads a percentage as a part of one. It has at most two decimals, which survive the conversion to float64.
func parsePercent(n *yaml.Node) (any, *Problem) {
	digits, marked := strings.CutSuffix(n.Value, "%")
	whole, fraction, _ := strings.Cut(digits, ".")
	hundredths, err := strconv.Atoi(whole + (fraction + "00")[:2])
	switch {
	case n.Kind == yaml.ScalarNode && !isString(n):
		return nil, problem("not a percentage", "write it like 10%")
	case !marked, err != nil, len(fraction) > 2, !isDigits(whole + fraction):
		return nil, problem("not a percentage", "write it like 10%, with at most two decimals")
	}
	return float64(hundredths) / 10000, nil
}

// formatPercent is the inverse of parsePercent.
func formatPercent(part float64) string {
	return strconv.FormatFloat(math.Round(part*10000)/100, 'f', -1, 64) + "%"
}

// parseText reads the text of a TXT record with one string (RFC 1035 section 3.3).
func parseText(text string) (string, *Problem) {
	switch {
	case len(text) > 255:
		return "", problem("longer than 255 bytes", "")
	case strings.ContainsFunc(text, unicode.IsControl):
		return "", problem("holds a control character", "")
	}
	return text, nil
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

// isString reports whether a value is a string in YAML 1.1 as well as in YAML 1.2.
func isString(n *yaml.Node) bool {
	if n.Kind != yaml.ScalarNode {
		return false
	}
	switch n.ShortTag() {
	case "!!null", "!!int", "!!float", "!!bool":
		return false
	}
	_, isBool := boolOf(n)
	return !isBool
}

// boolOf returns the value of a boolean. YAML 1.1 has yes, no, on and off as well, which other programs that read the
// file may take for booleans.
func boolOf(n *yaml.Node) (value, isBool bool) {
	const quoted = yaml.DoubleQuotedStyle | yaml.SingleQuotedStyle | yaml.LiteralStyle | yaml.FoldedStyle | yaml.TaggedStyle
	tag := n.ShortTag()
	if n.Kind != yaml.ScalarNode || tag != "!!bool" && (tag != "!!str" || n.Style&quoted != 0) {
		return false, false
	}
	switch n.Value {
	case "y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON":
		return true, true
	case "n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF":
		return false, true
	}
	return false, false
}

// shown is a value in a message: a scalar as it is written, the kind of anything else.
func shown(n *yaml.Node) string {
	switch {
	case n.Kind == yaml.MappingNode:
		return "a mapping"
	case n.Kind == yaml.SequenceNode:
		return "a list"
	case isNull(n):
		return "empty"
	case isString(n):
		return quote(n.Value)
	case len(n.Value) > maxShown:
		return n.Value[:maxShown] + "..." // a long scalar that is no string, such as a number
	}
	return n.Value
}

// quote quotes s, or the start of a long one.
func quote(s string) string {
	if len(s) <= maxShown {
		return strconv.Quote(s)
	}
	end := maxShown
	for end > 0 && s[end]&0xC0 == 0x80 { // do not cut within a UTF-8 sequence
		end--
	}
	return strconv.Quote(s[:end]) + "..."
}

// queryLogFormat is the format of a query log.
func queryLogFormat() format {
	return format{
		parse:  func(n *yaml.Node) (any, *Problem) { return parseQueryLog(wordOf(n, []string{"off"})) },
		print:  func(v reflect.Value) string { return quoteYAML(fmt.Sprint(v)) },
		schema: jsonType("string", "boolean"),
	}
}

// maxSample bounds N of sample=N: with a larger N a busy node logs less than a line an hour.
const maxSample = 1_000_000_000

// The bounds of a threshold for slow queries.
const (
	minSlow = time.Millisecond
	maxSlow = time.Minute // no query takes longer: limits.deadline has this bound
)

// parseQueryLog reads a query log.
func parseQueryLog(text string) (QueryLog, *Problem) {
	words := []string{QueriesOff, QueriesErrors, QueriesSlow, "slow=DURATION", "sample=N", QueriesAll}
	mode, value, hasValue := strings.Cut(text, "=")
	switch {
	case hasValue && mode == QueriesSample:
		return parseSample(value)
	case hasValue && mode == QueriesSlow:
		return parseSlow(value)
	case hasValue || !slices.Contains(words, text):
		return QueryLog{}, problem("not "+orList(words), didYouMean(text, words))
	case text == QueriesSlow:
		return QueryLog{Mode: QueriesSlow, Slow: DefaultSlow}, nil
	}
	return QueryLog{Mode: text}, nil
}

// parseSample reads N of sample=N.
func parseSample(number string) (QueryLog, *Problem) {
	sample, err := strconv.Atoi(number)
	if err != nil || sample < 1 || sample > maxSample || !isDigits(number) {
		return QueryLog{}, problem(fmt.Sprintf("not a sample between 1 and %d", maxSample), "sample=100 logs one query in a hundred")
	}
	return QueryLog{Mode: QueriesSample, Sample: sample}, nil
}

// parseSlow reads the threshold of slow=DURATION.
func parseSlow(text string) (QueryLog, *Problem) {
	d, err := time.ParseDuration(text)
	if err != nil || d < minSlow || d > maxSlow {
		return QueryLog{}, problem("not a duration between 1ms and 1m", "slow=500ms logs queries that took 500 ms or longer")
	}
	return QueryLog{Mode: QueriesSlow, Slow: d}, nil
}
