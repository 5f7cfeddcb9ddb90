package echolock_test

import (
	"bytes"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"

	"github.com/labstack/echo/v4"

	"github.com/latchkit/latchkit/contrib/echolock"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// recovered answers a panic with 500, as Echo's Recover does. The tests do not use Echo's own
// Recover, because the package of Recover needs more modules.
func recovered(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) (err error) {
		defer func() {
			if recover() != nil {
				err = c.NoContent(http.StatusInternalServerError)
			}
		}()
		return next(c)
	}
}

// A handler may panic after it has parsed a form. The server removes the files of the form that
// it finds in its own request.
func TestAPanicLeavesNoFilesOfItsForm(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	l := lockertest.NewLocker(t, lockertest.NewMemory())
	e := echo.New()
	e.Use(recovered)
	e.POST("/orders/:id", func(c echo.Context) error {
		if err := c.Request().ParseMultipartForm(1); err != nil {
			t.Error(err)
		}
		if files, err := os.ReadDir(os.TempDir()); err != nil || len(files) == 0 {
			t.Errorf("%d files, %v: the form is not large enough for this test", len(files), err)
		}
		panic("out of ink")
	}, echolock.MustNew(l, "order:{param.id}"))
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
