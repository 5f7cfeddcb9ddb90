package ginlock_test

import (
	"bytes"
	"io"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"

	"github.com/gin-gonic/gin"

	"github.com/latchkit/latchkit/ginlock"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// A handler may panic after it has parsed a form. The server removes the files of the form that
// it finds in its own request.
func TestAPanicLeavesNoFilesOfItsForm(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	l := lockertest.NewLocker(t, lockertest.NewMemory())
	e := gin.New()
	e.Use(gin.CustomRecoveryWithWriter(io.Discard, func(c *gin.Context, _ any) { c.AbortWithStatus(http.StatusInternalServerError) }))
	e.POST("/orders/:id", ginlock.MustNew(l, "order:{param.id}"), func(c *gin.Context) {
		if err := c.Request.ParseMultipartForm(1); err != nil {
			t.Error(err)
		}
		if files, err := os.ReadDir(os.TempDir()); err != nil || len(files) == 0 {
			t.Errorf("%d files, %v: the form is not large enough for this test", len(files), err)
		}
		panic("out of ink")
	})
	server := httptest.NewServer(e)
	var body bytes.Buffer
	form := multipart.NewWriter(&body)
	file, err := form.CreateFormFile("photo", "photo.jpg")
	if err != nil {
		t.Fatal(err)
	}
	_, _ = file.Write(make([]byte, 11<<20))
	_ = form.Close()
	res, err := server.Client().Post(server.URL+"/orders/42", form.FormDataContentType(), &body)
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	server.Close() // Close waits until the request has ended
	if files, err := os.ReadDir(os.TempDir()); err != nil || len(files) != 0 || res.StatusCode != 500 {
		t.Errorf("%d, %d files are left, %v", res.StatusCode, len(files), err)
	}
}
