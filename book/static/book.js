// The sidebar shows the current page, which is far down the list in later lessons.
document.addEventListener("DOMContentLoaded", () => {
  const list = document.querySelector(".sidebar-scroll");
  const current = document.querySelector(".sidebar-tree .current-page");
  if (list && current && current.offsetTop > list.clientHeight / 2) {
    list.scrollTop = current.offsetTop - list.clientHeight / 2;
  }
});
