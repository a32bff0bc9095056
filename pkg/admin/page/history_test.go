// SPDX-License-Identifier: Apache-2.0

package page_test

import (
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/admin"
	"github.com/nodecache/node-cache/pkg/admin/page"
	"github.com/nodecache/node-cache/pkg/resolve"
	"github.com/nodecache/node-cache/pkg/wire"
)

// titles returns the text alternatives of the plots.
func titles(body string) (list []string) {
	for _, m := range regexp.MustCompile(`(?s)<svg[^>]*>\s*<title>(.*?)</title>`).FindAllStringSubmatch(body, -1) {
		list = append(list, m[1])
	}
	return list
}

// count adds a second of queries: hits within 50 µs, misses within 25 ms, and failures within 5 s.
func count(st *resolve.Stats, hits, misses, failures uint64) {
	st.Queries[0][0][0] += hits + misses + failures
	st.Responses[resolve.SourceCache][wire.RcodeSuccess] += hits
	st.Responses[resolve.SourceUpstream][wire.RcodeSuccess] += misses
	st.Responses[resolve.SourceFailure][wire.RcodeServFail] += failures
	st.Durations[resolve.SourceCache].Replies[0] += hits
	st.Durations[resolve.SourceUpstream].Replies[8] += misses
	st.Durations[resolve.SourceFailure].Replies[15] += failures
}

// TestPlots runs the history in virtual time and reads the text alternatives of its plots.
func TestPlots(t *testing.T) {
	t.Parallel()
	type step struct {
		seconds                int
		hits, misses, failures uint64 // each second
	}
	for _, tc := range []struct {
		name  string
		steps []step
		want  []string
		gaps  int // in the line of hits
	}{
		{
			"no interval has passed",
			[]step{{4, 10, 0, 0}},
			[]string{"Hit ratio in the last ten minutes. hits: no data.", "Queries per second in the last ten minutes. queries: no data.", "Failures per second in the last ten minutes. stale: no data. SERVFAIL: no data.", "Latency, p99 in the last ten minutes. hits: no data. misses: no data."},
			0,
		},
		{
			"an hour of the same",
			[]step{{3600, 90, 10, 0}},
			[]string{
				"Hit ratio in the last ten minutes. hits: now 90 %, from 90 % to 90 %.",
				"Queries per second in the last ten minutes. queries: now 100, from 100 to 100.",
				"Failures per second in the last ten minutes. stale: now 0, from 0 to 0. SERVFAIL: now 0, from 0 to 0.",
				"Latency, p99 in the last ten minutes. hits: now 50µs, from 50µs to 50µs. misses: now 25ms, from 25ms to 25ms.",
			},
			0,
		},
		{
			"no query between two loads",
			[]step{{100, 100, 0, 0}, {100, 0, 0, 0}, {100, 0, 0, 2}},
			[]string{
				"Hit ratio in the last ten minutes. hits: now 0 %, from 0 % to 100 %.",
				"Queries per second in the last ten minutes. queries: now 2, from 0 to 100.",
				"Failures per second in the last ten minutes. stale: now 0, from 0 to 0. SERVFAIL: now 2, from 0 to 2.",
				"Latency, p99 in the last ten minutes. hits: now 50µs, from 50µs to 50µs. misses: no data.",
			},
			1,
		},
		{
			"a load that ended before the window",
			[]step{{100, 50, 50, 0}, {605, 0, 0, 0}},
			[]string{
				"Hit ratio in the last ten minutes. hits: no data.",
				"Queries per second in the last ten minutes. queries: now 0, from 0 to 0.",
				"Failures per second in the last ten minutes. stale: now 0, from 0 to 0. SERVFAIL: now 0, from 0 to 0.",
				"Latency, p99 in the last ten minutes. hits: no data. misses: no data.",
			},
			0,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var st resolve.Stats
				cfg := config()
				cfg.Stats = func() resolve.Stats { return st }
				p, err := page.New(cfg)
				assert.NoError(t, err)
				go p.Run(t.Context())
				synctest.Wait()
				for _, s := range tc.steps {
					for range s.seconds {
						time.Sleep(time.Second - time.Nanosecond)
						count(&st, s.hits, s.misses, s.failures)
						time.Sleep(time.Nanosecond)
						synctest.Wait()
					}
				}
				body := render(t, p)
				assert.Same(t, "titles", tc.want, titles(body))
				path := regexp.MustCompile(`<path class="one" d="([^"]*)"`).FindStringSubmatch(body)[1]
				assert.Equal(t, "gaps", tc.gaps, max(0, strings.Count(path, "M")-1))
				for _, x := range regexp.MustCompile(`[ML](\S+) `).FindAllStringSubmatch(path, -1) {
					if at, err := strconv.ParseFloat(x[1], 64); err != nil || at < 40 || at > 316 {
						t.Errorf("a point at %q, want it between the axes", x[1])
					}
				}
			})
		})
	}
}

func render(t *testing.T, p *page.Page) string {
	t.Helper()
	w := httptest.NewRecorder()
	p.Serve(w, httptest.NewRequest(http.MethodGet, "/", nil), admin.View{})
	return w.Body.String()
}

func TestRecordAllocatesNothing(t *testing.T) {
	cfg := config()
	p, err := page.New(cfg)
	assert.NoError(t, err)
	assert.Equal(t, "allocations of a sample", 0, testing.AllocsPerRun(300, p.Record))
}
