package recipes_test

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/tus/tusd/v2/pkg/filestore"
	"github.com/tus/tusd/v2/pkg/handler"

	"github.com/latchkit/latchkit/examples/recipes"
)

// uploads starts a pod that serves tusd's uploads. The uploads are on a disk that all pods share.
func uploads(t *testing.T, p pod, disk string) *httptest.Server {
	t.Helper()
	composer := handler.NewStoreComposer()
	filestore.New(disk).UseIn(composer)
	recipes.NewUploadLocker(p.l).UseIn(composer)
	h, err := handler.NewHandler(handler.Config{BasePath: "/files/", StoreComposer: composer, NetworkTimeout: 20 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(http.StripPrefix("/files/", h))
	t.Cleanup(s.Close)
	return s
}

// A client loses its connection, and resumes its upload on another pod. The first pod notices
// the lost connection later.
func TestAnUploadIsResumedOnAnotherPod(t *testing.T) {
	t.Parallel()
	disk, pods := t.TempDir(), newPods(t)
	first, second := uploads(t, pods[0], disk), uploads(t, pods[1], disk)
	const text = "one two three four"
	made := tus(t, http.MethodPost, first.URL+"/files/", nil, "Upload-Length", "18")
	if made.code != http.StatusCreated {
		t.Fatal(made)
	}
	id := made.upload()

	body, sends := io.Pipe() // the client never ends this body, so the pod waits for more data
	slow := make(chan reply, 1)
	go func() { slow <- tus(t, http.MethodPatch, first.URL+"/files"+id, body, "Upload-Offset", "0") }()
	if _, err := io.WriteString(sends, text[:7]); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the first pod holds the upload", func() bool {
		info, err := pods[1].l.Inspect(t.Context(), "upload:"+id[1:])
		return err == nil && info.Held
	})

	head := tus(t, http.MethodHead, second.URL+"/files"+id, nil)
	if head.code != http.StatusOK {
		t.Fatalf("the second pod: %v", head)
	}
	offset := head.header.Get("Upload-Offset")
	if offset != "7" {
		t.Fatalf("the second pod continues at %s", offset)
	}
	rest := tus(t, http.MethodPatch, second.URL+"/files"+id, strings.NewReader(text[7:]), "Upload-Offset", offset)
	if rest.code != http.StatusNoContent {
		t.Errorf("the rest: %v", rest)
	}
	_ = sends.CloseWithError(errors.New("the connection was lost long ago"))
	if r := <-slow; r.code > 0 && r.code < 400 {
		t.Errorf("the first pod says %v", r)
	}
	if got := tus(t, http.MethodGet, first.URL+"/files"+id, nil); got.body != text {
		t.Errorf("%v", got)
	}
}

// reply is what a pod answers. Its code is 0 if the connection fails.
type reply struct {
	code   int
	header http.Header
	body   string
}

// upload returns the path of a new upload, relative to the handler's path.
func (r reply) upload() string {
	location := r.header.Get("Location")
	return location[strings.LastIndex(location, "/"):]
}

// tus sends a request of the tus protocol.
func tus(t *testing.T, method, url string, body io.Reader, headers ...string) reply {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, body)
	if err != nil {
		t.Error(err)
		return reply{}
	}
	r.Header.Set("Tus-Resumable", "1.0.0")
	if method == http.MethodPatch {
		r.Header.Set("Content-Type", "application/offset+octet-stream")
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return reply{}
	}
	defer response.Body.Close()
	text, _ := io.ReadAll(response.Body) // only a part of the reply, when the connection fails
	return reply{response.StatusCode, response.Header, string(text)}
}
