// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nodecache/node-cache/pkg/config"
)

// Key is the key of the configuration in a ConfigMap.
const Key = "node-cache.yaml"

const (
	// Timeouts of Load for the API server: with a last good configuration, and without one.
	loadTimeout           = 5 * time.Second
	loadTimeoutNoFallback = 30 * time.Second
	answerLimit           = 10 * time.Second // for a list, and for the start of a watch

	// A watch lasts four to five minutes, then the next one resumes. A silent watch is detected by then at the latest, a dead
	// connection within 45 s.
	watchMinSeconds    = 240
	watchJitterSeconds = 60 // seconds
	watchEndGrace      = 10 * time.Second

	minWatchInterval = time.Second // from one watch to the next, if they end at once

	// maxAnswer bounds a list and each event of a watch: a ConfigMap of 1 MiB may take six times that in JSON, plus its
	// managed fields.
	maxAnswer = 16 << 20
)

// A configMap reads the configuration from a ConfigMap. It has at most one request in flight.
type configMap struct {
	source   *Source
	api      *api
	object   Object
	requests atomic.Uint64

	// The following fields belong to load, and then to run.
	version string // to watch from; empty: list first
	exists  bool
	text    string // of the key; an object without it is known by its error
	pause   backoff
}

// The relevant parts of API objects.
type (
	meta struct {
		Name            string `json:"name"`
		ResourceVersion string `json:"resourceVersion"`
	}
	item struct {
		Metadata   meta              `json:"metadata"`
		Data       map[string]string `json:"data"`
		BinaryData map[string]string `json:"binaryData"`
	}
	list struct {
		Metadata meta   `json:"metadata"`
		Items    []item `json:"items"`
	}
	event struct {
		Type   string          `json:"type"`
		Object json.RawMessage `json:"object"`
	}
)

func newConfigMap(s *Source, a *api) *configMap {
	return &configMap{source: s, api: a, object: s.cfg.ConfigMap}
}

// load implements [configReader]. It waits for a missing object as for a server that is down.
func (m *configMap) load(ctx context.Context) (content, error) {
	limit := loadTimeoutNoFallback
	if m.source.lastGood != nil && m.source.lastGood.exists() {
		limit = loadTimeout
	}
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		c, err := m.list(limited)
		if err == nil && !c.transient {
			return c, nil
		}
		if limited.Err() == nil && sleep(limited, m.pause.after(err)) {
			continue
		}
		m.pause.reset()
		return c, err
	}
}

// run implements [configReader].
func (m *configMap) run(ctx context.Context) error {
	defer m.api.close()
	for ctx.Err() == nil {
		began := m.source.cfg.Now()
		err := m.listAndWatch(ctx)
		if ctx.Err() != nil {
			break
		}
		if err != nil {
			sleep(ctx, m.pause.after(err))
			continue
		}
		if m.source.cfg.Now().Sub(began) < minWatchInterval {
			sleep(ctx, minWatchInterval)
		}
	}
	return nil
}

// reset implements [configReader].
func (m *configMap) reset() { m.version, m.exists, m.text = "", false, "" }

// listAndWatch lists, if needed, and watches until the watch ends. After an error, it resumes if possible.
func (m *configMap) listAndWatch(ctx context.Context) error {
	if m.version == "" {
		before, text := m.exists, m.text
		c, err := m.list(ctx)
		if err != nil {
			return err
		}
		if m.exists != before || m.text != text || c.err != nil {
			m.source.report(&m.source.mainContent, c)
		}
	}
	err := m.watch(ctx)
	if ctx.Err() != nil || err == nil {
		return err
	}
	if asStatusError(err) != nil || errors.Is(err, errUnreadable) {
		m.version = "" // the start of the watch may be the cause
	}
	if reasonOf(err) == reasonHistory {
		return err // a restarting server causes this
	}
	m.unreadable(ctx, err)
	return err
}

// unreadable reports that the object cannot be read.
func (m *configMap) unreadable(ctx context.Context, err error) {
	if ctx.Err() == nil {
		m.source.setReadError(ctx, requestError(err, m.object))
	}
}

// readable reports that the object can be read.
func (m *configMap) readable(ctx context.Context) {
	m.pause.reset()
	m.source.setReadError(ctx, nil)
}

// request requests the object.
func (m *configMap) request(ctx context.Context, query url.Values) (*http.Response, error) {
	m.requests.Add(1)
	query.Set("fieldSelector", "metadata.name="+m.object.Name)
	return m.api.do(ctx, call{
		method: http.MethodGet, path: []string{"namespaces", m.object.Namespace, "configmaps"}, query: query,
	})
}

// list reads the newest state.
func (m *configMap) list(ctx context.Context) (content, error) {
	limited, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	var all list
	resp, err := m.request(limited, url.Values{})
	if err == nil {
		defer func() { _ = resp.Body.Close() }()
		err = decode(json.NewDecoder(io.LimitReader(resp.Body, maxAnswer)), &all)
		if err == nil && all.Metadata.ResourceVersion == "" {
			err = fmt.Errorf("%w: list without a version", errUnreadable)
		}
	}
	if err != nil {
		if limited.Err() != nil {
			err = errNoAnswer
			m.api.close()
		}
		m.unreadable(ctx, err)
		return content{}, requestError(err, m.object)
	}
	m.readable(ctx)
	m.version = all.Metadata.ResourceVersion
	i := slices.IndexFunc(all.Items, func(o item) bool { return o.Metadata.Name == m.object.Name })
	if i < 0 {
		return m.missing(), nil
	}
	return m.content(&all.Items[i]), nil
}

// watch reads the changes since the version, until the server ends the watch.
func (m *configMap) watch(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	seconds := watchMinSeconds + rand.IntN(watchJitterSeconds)
	late := time.AfterFunc(answerLimit, cancel)
	defer late.Stop()
	resp, err := m.request(ctx, url.Values{
		"watch": {"true"}, "allowWatchBookmarks": {"true"},
		"resourceVersion": {m.version}, "timeoutSeconds": {strconv.Itoa(seconds)},
	})
	if err != nil {
		return m.timeoutError(ctx, err)
	}
	defer func() { _ = resp.Body.Close() }()
	late.Reset(time.Duration(seconds)*time.Second + watchEndGrace)
	m.readable(ctx)
	return m.timeoutError(ctx, m.readEvents(resp.Body))
}

// timeoutError returns errNoAnswer if this process ended the wait, and err otherwise.
func (m *configMap) timeoutError(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		m.api.close()
		return errNoAnswer
	}
	return err
}

// readEvents reads the events of a watch.
func (m *configMap) readEvents(body io.Reader) error {
	bounded := &io.LimitedReader{R: body}
	events := json.NewDecoder(bounded)
	for {
		bounded.N = maxAnswer
		var e event
		err := decode(events, &e)
		switch {
		case err != nil && bounded.N == 0:
			return fmt.Errorf("%w: event larger than %d MiB", errUnreadable, maxAnswer>>20)
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		if err := m.apply(&e); err != nil {
			return err
		}
	}
}

// apply applies one event.
func (m *configMap) apply(e *event) error {
	if e.Type == "ERROR" {
		no := &statusError{}
		if err := json.Unmarshal(e.Object, no); err != nil {
			return fmt.Errorf("%w: %w", errUnreadable, err)
		}
		return no
	}
	var o item
	if err := json.Unmarshal(e.Object, &o); err != nil || o.Metadata.ResourceVersion == "" {
		return fmt.Errorf("%w: event without an object with a version", errUnreadable)
	}
	m.version = o.Metadata.ResourceVersion
	there, text := m.exists, m.text
	var c content
	switch {
	case e.Type == "BOOKMARK", o.Metadata.Name != m.object.Name:
		return nil
	case e.Type == "DELETED":
		c = m.missing()
	default:
		c = m.content(&o)
	}
	if c.err != nil || m.exists != there || m.text != text {
		m.source.report(&m.source.mainContent, c)
	}
	return nil
}

// missing returns the content for a missing object. It may be about to be created again.
func (m *configMap) missing() content {
	m.exists, m.text = false, ""
	return content{transient: true, err: &Error{
		Err:  fmt.Errorf("ConfigMap %s does not exist", m.object),
		Hint: "create it, with the configuration in the key " + Key,
	}}
}

// content returns the object's content. A missing or empty text is an error, not a configuration of defaults.
func (m *configMap) content(o *item) content {
	text, ok := o.Data[Key]
	m.exists, m.text = true, text
	switch _, binary := o.BinaryData[Key]; {
	case binary:
		return m.invalid("the key "+Key+" is not text", "create it from a UTF-8 text file")
	case !ok:
		keys := slices.Sorted(maps.Keys(o.Data))
		return m.invalid("no key "+Key, fmt.Sprintf("put the configuration there; the keys are [%s]", strings.Join(keys, ", ")))
	case strings.TrimSpace(text) == "":
		return m.invalid("the key "+Key+" is empty", "write `kind: Config` for the built-in defaults")
	}
	c, err := config.ParseAs(m.source.Name(), ".", []byte(text), m.source.cfg.Role)
	return content{config: c, err: err}
}

// invalid returns the content of an object without a configuration.
func (m *configMap) invalid(what, hint string) content {
	return content{err: &Error{Err: fmt.Errorf("ConfigMap %s: %s", m.object, what), Hint: hint}}
}

// asStatusError returns the API server's error response in err, or nil.
func asStatusError(err error) *statusError {
	no := (*statusError)(nil)
	errors.As(err, &no)
	return no
}
