// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nodecache/node-cache/pkg/plain"
)

// MaxWatchLine bounds the bytes of a line of /watch. A name has at most 1,004 as text, a pod 317, the path of a hosts file 4,096.
const MaxWatchLine = 16 << 10

// WatchFlags select queries of the page /watch: by parameter.
type WatchFlags map[string]*string

// Add adds the flags to a command. namespace is the name of the one for the namespace of the pods.
func (f *WatchFlags) Add(cmd *cobra.Command, namespace string) {
	*f = WatchFlags{"namespace": cmd.Flags().String(namespace, "", "only queries of pods of `NAMESPACE`")}
	for name, usage := range map[string]string{
		"pod": "only queries of `NAMESPACE/POD`", "name": "only queries for names at and below `DOMAIN`",
		"rcode": "only replies with `RCODE`, such as NXDOMAIN", "source": "only replies from `SOURCE`, such as cache or upstream",
	} {
		(*f)[name] = cmd.Flags().String(name, "", usage)
	}
}

// Parameters returns the parameters of /watch.
func (f *WatchFlags) Parameters() url.Values {
	given := url.Values{}
	for name, value := range *f {
		if *value != "" {
			given.Set(name, *value)
		}
	}
	return given
}

// WatchLines returns a reader of the lines of /watch. It fails at one that is longer than MaxWatchLine.
func WatchLines(in io.Reader) *bufio.Scanner {
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, MaxWatchLine)
	return lines
}

// WatchText formats a line of /watch. The members that follow the client are those of the explanation, and the extended error.
func WatchText(line []byte) (string, error) {
	var q struct {
		Time                                   time.Time
		Name, Type, Rcode, Source, Client, Pod string
		Took                                   float64 `json:"took_seconds"`
		Dropped                                uint64

		Upstream, Failure, Reason, Denied, Below, List, Rule string
		EDE                                                  *int   `json:"ede"`
		EDEText                                              string `json:"ede_text"`
	}
	if err := ReadJSON(line, &q); err != nil {
		return "", err
	}
	if q.Dropped > 0 {
		return fmt.Sprintf("(%d more)", q.Dropped), nil
	}
	var b strings.Builder
	_, _ = fmt.Fprintf(&b, "%s  %-8s %-8s %9s  %-5s %s  %s", q.Time.Format("15:04:05.000"), q.Rcode, q.Source,
		time.Duration(q.Took*float64(time.Second)).Round(10*time.Microsecond), q.Type, q.Name, cmp.Or(q.Pod, q.Client))
	for _, member := range [][2]string{
		{"upstream", q.Upstream}, {"failure", q.Failure}, {"reason", q.Reason}, {"denied", q.Denied}, {"below", q.Below}, {"list", q.List}, {"rule", q.Rule},
	} {
		if member[1] != "" {
			_, _ = fmt.Fprintf(&b, "  %s=%s", member[0], member[1])
		}
	}
	if q.EDE != nil {
		_, _ = fmt.Fprintf(&b, "  extended error %d (%s)", *q.EDE, q.EDEText)
	}
	return plain.Line(b.String()), nil
}
